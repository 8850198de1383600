// Tells requests of people and programs from those that other web sites send: for the patch `requests`.
//
// A browser runs scripts of any site, and lets each send requests anywhere. A script reads the answers of another site only where that allows
// it (CORS), but the browser sends "simple" POSTs without a question, and takes a site whose name points to our address for ours.
#pragma once

#include <string>
#include <vector>

namespace httplib {
struct Request;
struct Response;
}

namespace edgekv_sites {

// Hosts under which a server may be asked besides localhost and the loopback's addresses; in lower case, IPv6 without brackets.
struct admitted {
    std::vector<std::string> names;
    bool                     any_address = false;  // every IP address: no site but ours can be there
};

// before a server starts; without a call every host is let in
void admit(const admitted & hosts);

// Whether a request is refused; `res` is then its answer. 403: it names a host that is not ours, or comes from a site that may not send it.
// 415: a POST that a browser would send without a question. `origins`: the sites that may, as --cors-origins says.
bool refuses(const httplib::Request & req, httplib::Response & res, const std::string & origins);

}  // namespace edgekv_sites
