#include "approx/activations.h"

#include "kernels/host/errors.h"

namespace outgrad::approx {

Activation find_activation(const std::string& name) {
  if (name == Gelu::kName) return make_activation<Gelu>();
  throw kernels::SpecError("activation '" + name + "' is unknown; known: " + Gelu::kName);
}

}  // namespace outgrad::approx
