"""A script that runs in the installed package: it writes the device's measured rates as JSON. `python rates.py cuda|emulated FILE`"""

import json
import sys
from dataclasses import asdict
from pathlib import Path


def main() -> int:
    from edgekv.common.enums import DeviceKind
    from edgekv.common.errors import EdgeKVError
    from edgekv.planning.available import available_bytes
    from edgekv.planning.device import calibrate
    from edgekv.planning.devices import devices

    kind = DeviceKind(sys.argv[1])
    try:
        found = devices(kind)
        if not found or not found[0].usable:
            print(f"no device {kind.value}: {found[0].problem if found else 'this build knows none'}")
            return 5
        rates = asdict(calibrate(kind, found[0].index, again=True, available=available_bytes()))
    except EdgeKVError as error:
        print(error)
        return error.exit_code
    Path(sys.argv[2]).write_text(json.dumps(rates))
    print(f"{found[0].name}: link {rates['link_copy'] / 1e9:.1f} GB/s, gather {rates['link_gather'] / 1e9:.1f}, "
          f"pageable {rates['link_pageable'] / 1e9:.1f}, VRAM {rates['vram'] / 1e9:.0f}, DRAM {rates['dram'] / 1e9:.0f}, "
          f"launch {rates['launch_us']:.1f} us")
    return 0


if __name__ == "__main__":
    sys.exit(main())
