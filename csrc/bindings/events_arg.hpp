// Events as arguments of bindings.
#pragma once

#include <optional>

#include "tensor_arg.hpp"
#include "tgflow/events.hpp"

using OptionalTensor = std::optional<TensorArg>;

/// The events whose columns these are, int64 and of one length each; `label` may be None.
tgflow::Events events_of(const TensorArg& src, const TensorArg& dst, const TensorArg& t,
                         const OptionalTensor& label);
