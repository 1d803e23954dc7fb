#pragma once

#include "ops/device.h"
#include "ops/ops.h"

namespace quire {

// A device and its ops. Ops are queued in the order they are called, as copies are.
class Backend : public Device, public Ops {
 protected:
  Backend() : Ops(static_cast<Device&>(*this)) {}
};

}  // namespace quire
