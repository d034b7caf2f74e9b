// SPDX-License-Identifier: Apache-2.0

#include "bind/bind_bench.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bind/gil.h"
#include "bind/seconds.h"
#include "bind/status_error.h"
#include "net/bench_client.h"

namespace py = pybind11;

namespace headrace {
namespace {

std::vector<std::int64_t> times_in(const py::buffer& arrivals_ns) {
  const py::buffer_info info = arrivals_ns.request();
  const auto stride = static_cast<py::ssize_t>(sizeof(std::int64_t));
  if (info.ndim != 1 || !info.item_type_is_equivalent_to<std::int64_t>() ||
      (info.size > 0 && info.strides[0] != stride))
    throw_status(InvalidArgument("arrivals_ns must be a contiguous int64[n]"));
  const auto* first = static_cast<const std::int64_t*>(info.ptr);
  std::vector<std::int64_t> times(first, first + info.size);
  if (!std::is_sorted(times.begin(), times.end()) || (!times.empty() && times.front() < 0))
    throw_status(InvalidArgument("arrivals_ns must be in order, from 0 on"));
  return times;
}

std::unique_ptr<BenchClient> make_client(std::string host, std::string port, std::string path,
                                         const std::vector<py::bytes>& messages, int connections, int threads,
                                         int concurrency, std::optional<double> duration,
                                         std::optional<std::uint64_t> requests,
                                         const std::optional<py::buffer>& arrivals_ns, double warm_up, double patience,
                                         std::string timeout, bool keep_answers) {
  BenchPlan plan;
  plan.target = {.host = std::move(host),
                 .port = std::move(port),
                 .path = std::move(path),
                 .timeout = std::move(timeout),
                 .keep_answers = keep_answers};
  plan.messages.assign(messages.begin(), messages.end());
  plan.connections = connections;
  plan.threads = threads;
  plan.concurrency = concurrency;
  if (duration) plan.duration_ns = seconds_ns(*duration);
  if (requests) plan.requests = *requests;
  if (arrivals_ns) plan.arrivals_ns = times_in(*arrivals_ns);
  plan.warm_up_ns = seconds_ns(warm_up);
  plan.patience_ns = seconds_ns(patience);

  if (plan.messages.empty()) throw_status(InvalidArgument("there is no message to send"));
  for (const std::string& message : plan.messages) {
    if (message.size() > std::numeric_limits<std::uint32_t>::max())
      throw_status(InvalidArgument("a message has " + std::to_string(message.size()) + " bytes: too many for gRPC"));
  }
  if (threads < 1 || connections < threads) throw_status(InvalidArgument("a thread needs at least one connection"));
  if (plan.arrivals_ns.empty() && concurrency < connections)
    throw_status(InvalidArgument("a closed loop has at least one call for each connection"));
  return std::make_unique<BenchClient>(std::move(plan));
}

void start(BenchClient& client) {
  Status status;
  {
    const GilRelease others_run;
    status = client.start();
  }
  throw_unless_ok(status);
}

bool wait_for(BenchClient& client, double limit) {
  const GilRelease others_run;
  return client.wait_for(seconds_ns(limit));
}

BenchReport take_report(BenchClient& client) {
  const GilRelease others_run;
  client.stop();  // for those who did not wait
  return client.take_report();
}

// What a server said, whatever its bytes are.
py::str text_of(const std::string& bytes) {
  PyObject* text = PyUnicode_DecodeUTF8(bytes.data(), static_cast<py::ssize_t>(bytes.size()), "replace");
  if (text == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::str>(text);
}

py::dict counts_of(const BenchReport& report) {
  py::dict counts;
  for (std::size_t code = 0; code < BenchReport::kCodes; ++code) {
    if (report.by_code[code] != 0) counts[py::int_(code)] = report.by_code[code];
  }
  return counts;
}

py::dict texts_of(const BenchReport& report) {
  py::dict texts;
  for (std::size_t code = 0; code < BenchReport::kCodes; ++code) {
    if (report.by_code[code] != 0 && code != 0) texts[py::int_(code)] = text_of(report.texts[code]);
  }
  return texts;
}

py::list answers_of(const BenchReport& report) {
  py::list answers;
  for (const BenchReport::Answers& to_one : report.answers) {
    py::list seen;
    for (const auto& [answer, times] : to_one) seen.append(py::make_tuple(py::bytes(answer), times));
    answers.append(std::move(seen));
  }
  return answers;
}

}  // namespace

void register_bench(py::module_& module) {
  py::class_<LatencyHistogram>(module, "LatencyHistogram", py::is_final(), "How often each latency was seen.")
      .def(py::init<int>(), py::arg("significant_digits") = 3)
      .def("record", &LatencyHistogram::record, py::arg("latency_ns"))
      .def("count", &LatencyHistogram::count)
      .def("min_ns", &LatencyHistogram::min_ns)
      .def("max_ns", &LatencyHistogram::max_ns)
      .def("mean_ns", &LatencyHistogram::mean_ns)
      .def("quantile_ns", &LatencyHistogram::quantile_ns, py::arg("quantile"))
      .def("buckets", [](const LatencyHistogram& histogram) {
        py::list buckets;
        for (const auto& [lowest_ns, highest_ns, count] : histogram.buckets())
          buckets.append(py::make_tuple(lowest_ns, highest_ns, count));
        return buckets;
      });

  py::class_<BenchReport>(module, "BenchReport", py::is_final(), "What a run has measured.")
      .def_property_readonly("by_code", &counts_of)
      .def_property_readonly("texts", &texts_of)
      .def_readonly("latency", &BenchReport::latency)
      .def_readonly("lateness", &BenchReport::lateness)
      .def_property_readonly("slice_ns", [](const BenchReport& report) { return report.timeline.slice_ns(); })
      .def_property_readonly("slices",
                             [](const BenchReport& report) {
                               py::list slices;
                               for (const Timeline::Slice& slice : report.timeline.slices())
                                 slices.append(py::make_tuple(slice.failed, slice.latency));
                               return slices;
                             })
      .def_readonly("warm_up", &BenchReport::warm_up)
      .def_readonly("unsent", &BenchReport::unsent)
      .def_readonly("unanswered", &BenchReport::unanswered)
      .def_readonly("last_answer_ns", &BenchReport::last_answer_ns)
      .def_property_readonly("answers", &answers_of)
      .def_readonly("answers_dropped", &BenchReport::answers_dropped)
      .def_property_readonly("status", [](const BenchReport& report) {
        return py::make_tuple(static_cast<int>(report.status.code()), text_of(report.status.message()));
      });

  py::class_<BenchClient>(module, "BenchClient", py::is_final(), "The load generator.")
      .def(py::init(&make_client), py::arg("host"), py::arg("port"), py::arg("path"), py::arg("messages"),
           py::kw_only(), py::arg("connections") = 1, py::arg("threads") = 1, py::arg("concurrency") = 1,
           py::arg("duration") = py::none(), py::arg("requests") = py::none(), py::arg("arrivals_ns") = py::none(),
           py::arg("warm_up") = 0.0, py::arg("patience") = 10.0, py::arg("timeout") = "",
           py::arg("keep_answers") = false)
      .def("start", &start)
      .def("wait_for", &wait_for, py::arg("limit"))
      .def("stop", &BenchClient::stop)
      .def("was_progress",
           [](const BenchClient& client) {
             const BenchClient::Progress progress = client.was_progress();
             return py::make_tuple(progress.answered, progress.failed, progress.elapsed_ns);
           })
      .def("take_report", &take_report);
}

}  // namespace headrace
