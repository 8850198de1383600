// Tells requests of people and programs from requests of other web sites: for the patches `scheduling` and `http`.
//
// A browser runs scripts of any site and lets them send requests anywhere. A script can read another site's answers only if that site allows
// it (CORS), but the browser sends "simple" POSTs without asking, and treats a site whose name points to our address as ours.
#pragma once

#include <string>

namespace httplib {
struct Request;
struct Response;
class Server;
}

namespace edgekv_sites {

// Whether a request is refused; `res` is then its answer. 403: it names a foreign host, or comes from a site that may not send it.
// 415: a POST that a browser would send without asking. `origins`: the sites that may send, as in --cors-origins, or "scheme://".
// Whether or not, `res` tells a browser what its page may do.
bool refuses(const httplib::Request & req, httplib::Response & res, const std::string & origins);

// Gives each error a sentence that has none: llama.cpp's server tells its own, httplib's come without. The server gets our name, and leads from
// `/` to the live page where no handler before serves it.
void explain_errors(httplib::Server & server);

}  // namespace edgekv_sites
