// SPDX-License-Identifier: Apache-2.0
//
// The GIL in native code: GilRelease lets other Python threads run while native code waits or works; CallsPython stands
// around native code that runs Python, or what may give up the GIL as Python does (NumPy's conversions).
//
// CPython before 3.14 ends a thread that asks a finalizing interpreter for the GIL by unwinding its stack; where that
// meets C++ frames, the process aborts.  So the end of the process calls forbid_gil() while the interpreter still
// works: threads that come back from native code later, or are about to call Python from it, sleep for ever instead.
//
// Thread safety: any thread that holds the GIL.

#pragma once

#include <pybind11/pybind11.h>

namespace headrace {

class GilRelease {
 public:
  GilRelease() : state_(PyEval_SaveThread()) {}
  GilRelease(const GilRelease&) = delete;
  GilRelease& operator=(const GilRelease&) = delete;
  ~GilRelease();

 private:
  PyThreadState* const state_;
};

class CallsPython {
 public:
  CallsPython();
  CallsPython(const CallsPython&) = delete;
  CallsPython& operator=(const CallsPython&) = delete;
  ~CallsPython();
};

// Lets only this thread have the GIL again.  Returns when every other thread that was about to take it has had it, and
// those that called Python have come back, or not within a second.
void forbid_gil();

}  // namespace headrace
