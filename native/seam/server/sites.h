// Which requests come from people and programs, and which from web pages of other sites: for the patch `requests`.
//
// A browser runs pages of any site, and lets each send requests anywhere. A page reads the answers of another site only where that allows
// it (CORS), but "simple" POSTs are sent and run without a question, and a page whose name was given our address is taken for ours.
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
    bool                     any_address = false;  // every IP address: no page can be there but ours
};

// before a server starts; without a call every host is let in
void admit(const admitted & hosts);

// Whether a request is refused; `res` is then its answer. 403: it comes for a host that is not ours, or from a page that may not send it.
// 415: a POST that a browser would send without a question. `origins`: whose pages may, as --cors-origins says.
bool refuses(const httplib::Request & req, httplib::Response & res, const std::string & origins);

}  // namespace edgekv_sites
