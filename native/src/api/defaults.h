// What contexts get that are created from now on: what the process says, or a thread for those that it creates itself.
#pragma once

#include "edgekv_settings.h"

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace edgekv {

struct Defaults {
    bool attach = false;
    edgekv_params params = {};
    std::vector<int32_t> k_types, v_types;  // by layer; empty: all layers have the context's types
    std::string home;
};

// those of this thread; the newest count
inline std::vector<Defaults> & own_defaults() {
    thread_local std::vector<Defaults> own;
    return own;
}

struct ProcessDefaults {
    std::mutex mutex;
    Defaults defaults;
};

inline ProcessDefaults & process_defaults() {
    static ProcessDefaults * of_process = new ProcessDefaults;  // never destroyed: contexts may outlive static destruction
    return *of_process;
}

// the result of use(defaults that count for this thread)
template <typename Use> auto with_defaults(Use && use) {
    if (!own_defaults().empty()) {
        return use(own_defaults().back());
    }
    auto & of_process = process_defaults();
    std::lock_guard<std::mutex> lock(of_process.mutex);
    return use(of_process.defaults);
}

}  // namespace edgekv
