"""Where a device's bytes are, beside weights, gradients and optimizer state."""

from __future__ import annotations

from lull._torch.device import Device
from lull._torch.slots import Table


def by_category(device: Device, table: Table | None, baseline: int, floor: int) -> dict[str, int]:
    """Bytes by category. Slots and inputs are those of the running microbatch, `table`."""
    resident, in_use = device.pool.resident(), device.pool.in_use()
    slots = table.slot_bytes() if table is not None else 0
    inputs = table.input_bytes() if table is not None else 0
    outside = table.outside if table is not None else 0
    return {
        "slots": slots,
        "inputs": inputs,
        "outside": outside,
        "invisible": max(0, in_use - slots - inputs - outside),
        "cached": max(0, resident - in_use),
        "resident": resident,
        "floor": floor,
        "residual": max(0, device.bytes() - baseline - floor - resident),
    }
