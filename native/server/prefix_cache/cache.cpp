#include "server/prefix_cache/cache.h"

namespace edgekv_server {

server_cache & the_cache() {
    static server_cache cache;
    return cache;
}

}  // namespace edgekv_server
