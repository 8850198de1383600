// The emulated device of REAL_EMULATOR with four faults: who measures its rates is killed, a bit of a stored row is wrong, V of a page begins 16 bytes too
// early in the arena, and 1 MiB is lost with each engine.
#include <dlfcn.h>

#include <csignal>
#include <cstdlib>

#include "attention/cuda/engine.h"

using namespace edgekv;

static DeviceLibrary real;
static size_t lost = 0;

static bool rates(int, size_t, edgekv_rates *) { return std::raise(SIGKILL) == 0; }

static bool store(int index, StoreTrial & trial, TrialRuns & seen) {
    const bool done = real.try_store(index, trial, seen);
    trial.home_v[101] ^= 0x40;
    return done;
}

static bool info(int index, edgekv_device_info * out) {
    const bool done = real.info(index, out);
    out->free_bytes -= lost;
    return done;
}

static Engine * make(int index, const EngineShape & given, void * stream) {
    lost += size_t{1} << 20;
    EngineShape shape = given;
    for (EngineLayer & layer : shape.layers) {
        layer.v_offset -= 16;
    }
    return real.make(index, shape, stream);
}

const DeviceLibrary * edgekv_device_library() {
    static DeviceLibrary faulty;
    void * library = dlopen(std::getenv("REAL_EMULATOR"), RTLD_NOW | RTLD_LOCAL);
    real   = *reinterpret_cast<const DeviceLibrary * (*)()>(dlsym(library, "edgekv_device_library"))();
    faulty = real;
    faulty.info      = info;
    faulty.rates     = rates;
    faulty.try_store = store;
    faulty.make      = make;
    return &faulty;
}
