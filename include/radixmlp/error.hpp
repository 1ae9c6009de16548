// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "radixmlp/config.hpp"

namespace radixmlp::inline v0 {

enum class StatusCode : std::uint8_t { ok, invalid_batch, invalid_rows, out_of_memory, cuda_error };

// What a check found, without allocation: `argument[index] = value: requirement bound`.
// index is -1 where the argument is a number and not an array. The strings are literals.
struct Status {
  StatusCode code = StatusCode::ok;
  const char* argument = "";
  const char* requirement = "";
  std::int64_t index = -1;
  std::int64_t value = 0;
  std::int64_t bound = 0;
  bool has_bound = false;

  [[nodiscard]] bool ok() const noexcept { return code == StatusCode::ok; }

  [[nodiscard]] std::string message() const {
    if (ok()) {
      return "radixmlp: ok";
    }
    std::string text = "radixmlp: ";
    text += argument;
    if (index >= 0) {
      text += '[' + std::to_string(index) + ']';
    }
    text += " = " + std::to_string(value) + ": " + requirement;
    if (has_bound) {
      text += ' ' + std::to_string(bound);
    }
    return text;
  }
};

// Base of what the library throws. The message names the argument, the index and the value.
class Error : public std::runtime_error {
 public:
  RADIXMLP_ALWAYS_INLINE explicit Error(const Status& status) : std::runtime_error(status.message()), status_(status) {}

  [[nodiscard]] const Status& status() const noexcept { return status_; }
  [[nodiscard]] const char* argument() const noexcept { return status_.argument; }
  [[nodiscard]] std::int64_t index() const noexcept { return status_.index; }
  [[nodiscard]] std::int64_t value() const noexcept { return status_.value; }

 private:
  Status status_;
};

// A RaggedBatch, or an option of its index, that breaks a rule. Nothing was written.
class InvalidBatch : public Error {
 public:
  RADIXMLP_ALWAYS_INLINE explicit InvalidBatch(const Status& status) : Error(status) {}
};

// Row views or workspaces that do not fit the index or each other. Nothing was written or enqueued.
class InvalidRows : public Error {
 public:
  RADIXMLP_ALWAYS_INLINE explicit InvalidRows(const Status& status) : Error(status) {}
};

// A CUDA call returned an error: argument() is the call, value() its cudaError_t.
class CudaError : public Error {
 public:
  RADIXMLP_ALWAYS_INLINE explicit CudaError(const Status& status) : Error(status) {}
};

// Called instead of a throw in translation units built with -fno-exceptions. It must not return (it may
// longjmp, log and exit, ...); if it does, the process aborts.
using ErrorHook = void (*)(const Error&);

namespace hook {
inline std::atomic<ErrorHook> current{nullptr};
}  // namespace hook

// Installs the hook for the process and returns the one before it. Thread-safe. nullptr restores the default,
// which prints the message to stderr and aborts.
inline ErrorHook set_error_hook(ErrorHook hook) noexcept { return hook::current.exchange(hook); }

[[noreturn]] inline void call_error_hook(const Error& error) {
  if (const ErrorHook hook = hook::current.load()) {
    hook(error);
  } else {
    std::fprintf(stderr, "%s\n", error.what());
  }
  std::abort();
}

}  // namespace radixmlp::inline v0

namespace radixmlp::inline v0::inline RADIXMLP_MODE::detail {

// Throws what the status says, or calls the hook where exceptions are off.
[[noreturn]] inline void raise(const Status& status) {
  switch (status.code) {
    case StatusCode::invalid_batch:
      RADIXMLP_RAISE(InvalidBatch(status));
    case StatusCode::invalid_rows:
      RADIXMLP_RAISE(InvalidRows(status));
    case StatusCode::cuda_error:
      RADIXMLP_RAISE(CudaError(status));
    default:
      RADIXMLP_RAISE(Error(status));
  }
}

inline void raise_unless_ok(const Status& status) {
  if (!status.ok()) {
    raise(status);
  }
}

}  // namespace radixmlp::inline v0::inline RADIXMLP_MODE::detail
