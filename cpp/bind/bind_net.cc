// SPDX-License-Identifier: Apache-2.0

#include "bind/bind_net.h"

#include <pybind11/stl.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bind/fork.h"
#include "bind/gil.h"
#include "bind/seconds.h"
#include "bind/status_error.h"
#include "net/grpc_server.h"
#include "net/handler_queue.h"
#include "net/health_table.h"
#include "router.h"

namespace py = pybind11;

namespace headrace {
namespace {

// A call in the hands of a Python thread; answered with INTERNAL if it is dropped.
class CallHandle {
 public:
  explicit CallHandle(std::unique_ptr<HandlerCall> call) : call_(std::move(call)) {}
  CallHandle(const CallHandle&) = delete;
  CallHandle& operator=(const CallHandle&) = delete;
  ~CallHandle() {
    if (!made_.still_here()) call_.release();  // the parent answers it
  }

  HandlerCall& call() const {
    made_.check("call");
    return *call_;
  }

 private:
  MadeHere made_;
  std::unique_ptr<HandlerCall> call_;
};

// Python's GrpcServer: stops with the last reference.
class ServerHandle {
 public:
  ServerHandle(std::shared_ptr<const Router> router, const std::map<std::string, bool>& methods,
               std::size_t handler_calls_max, const GrpcServerOptions& options)
      : parts_(std::make_unique<Parts>(std::move(router), methods_of(methods), handler_calls_max, options)) {}
  ServerHandle(const ServerHandle&) = delete;
  ServerHandle& operator=(const ServerHandle&) = delete;
  ~ServerHandle() {
    if (!made_.still_here()) parts_.release();  // its threads are not there to be joined
  }

  void set_tls(std::string private_key, std::string certificate, std::string client_ca, bool verify_client) {
    made_.check("server");
    Status status;
    {
      GilRelease release;
      status = parts_->server.set_tls({.private_key = std::move(private_key),
                                       .certificate = std::move(certificate),
                                       .client_ca = std::move(client_ca),
                                       .verify_client = verify_client});
    }
    throw_unless_ok(status);
  }
  int start(const std::string& host, int port, const std::string& socket_path) {
    made_.check("server");
    Status status;
    {
      GilRelease release;
      status = parts_->server.start(host, &port, socket_path);
    }
    throw_unless_ok(status);
    return port;
  }

  void refuse() {
    made_.check("server");
    parts_->server.refuse();
  }

  bool stop(double drain_s, double send_s) {
    made_.check("server");
    GilRelease release;
    const bool answered = parts_->server.stop(seconds_ns(drain_s), seconds_ns(send_s));
    parts_->handlers.close();
    return answered;
  }

  std::unique_ptr<CallHandle> next_call() {
    made_.check("server");
    std::unique_ptr<HandlerCall> call;
    {
      GilRelease release;
      call = parts_->handlers.next();
    }
    return call == nullptr ? nullptr : std::make_unique<CallHandle>(std::move(call));
  }

  void set_health(const std::string& service, int serving) {
    made_.check("server");
    if (serving < static_cast<int>(Serving::kUnknown) || serving > static_cast<int>(Serving::kServiceUnknown))
      throw_status(InvalidArgument("serving is " + std::to_string(serving) + "; it must be a ServingStatus, 0 to 3"));
    parts_->health.set(service, static_cast<Serving>(serving));
  }

 private:
  // In this order: the server uses the others to its end.
  struct Parts {
    Parts(std::shared_ptr<const Router> router, std::vector<GrpcServer::Method> methods, std::size_t handler_calls_max,
          const GrpcServerOptions& options)
        : handlers(handler_calls_max), server(std::move(router), std::move(methods), handlers, health, options) {}

    HandlerQueue handlers;
    HealthTable health;
    GrpcServer server;
  };

  static std::vector<GrpcServer::Method> methods_of(const std::map<std::string, bool>& methods) {
    std::vector<GrpcServer::Method> made;
    for (const auto& [path, per_message] : methods) made.push_back({.path = path, .per_message = per_message});
    return made;
  }

  MadeHere made_;
  std::unique_ptr<Parts> parts_;
};

std::unique_ptr<ServerHandle> make_server(const std::shared_ptr<Router>& router,
                                          const std::map<std::string, bool>& methods, std::size_t handler_calls_max,
                                          int loops, std::size_t message_bytes_max, std::size_t header_bytes_max,
                                          std::uint32_t streams_max, std::size_t connections_max,
                                          std::size_t requests_max, std::size_t buffered_bytes_max, double request,
                                          double idle, double age, double age_grace, double ping, double ping_answer) {
  GrpcServerOptions options;
  options.loops = loops;
  options.message_bytes_max = message_bytes_max;
  options.header_bytes_max = header_bytes_max;
  options.streams_max = streams_max;
  options.connections_max = connections_max;
  options.requests_max = requests_max;
  options.buffered_bytes_max = buffered_bytes_max;
  options.request_ns = seconds_ns(request);
  options.idle_ns = seconds_ns(idle);
  options.age_ns = seconds_ns(age);
  options.age_grace_ns = seconds_ns(age_grace);
  options.ping_ns = seconds_ns(ping);
  options.ping_answer_ns = seconds_ns(ping_answer);
  return std::make_unique<ServerHandle>(router, methods, handler_calls_max, options);
}

double seconds_of(std::int64_t ns) { return static_cast<double>(ns) / 1e9; }

}  // namespace

void register_net(py::module_& module) {
  py::class_<CallHandle>(module, "HandlerCall", py::is_final(), "One message of a call that Python answers.")
      .def_property_readonly("path", [](const CallHandle& handle) { return handle.call().path(); })
      .def_property_readonly("message",
                             [](const CallHandle& handle) {
                               return py::bytes(handle.call().message().data(), handle.call().message().size());
                             })
      .def(
          "answer",
          [](const CallHandle& handle, const py::bytes& response) {
            handle.call().answer({}, std::string_view(response));
          },
          py::arg("response"))
      .def(
          "fail",
          [](const CallHandle& handle, int code, const py::str& message) {
            constexpr int kLast = static_cast<int>(Code::kUnauthenticated);
            if (code < 1 || code > kLast)
              throw_status(InvalidArgument("the code of an error is from 1 to " + std::to_string(kLast) + "; was " +
                                           std::to_string(code)));
            // Python's text may hold what UTF-8 cannot.
            const auto text =
                py::reinterpret_steal<py::bytes>(PyUnicode_AsEncodedString(message.ptr(), "utf-8", "replace"));
            if (!text) throw py::error_already_set();
            handle.call().answer({static_cast<Code>(code), std::string(text)}, {});
          },
          py::arg("code"), py::arg("message"));

  const GrpcServerOptions defaults;
  py::class_<ServerHandle>(module, "GrpcServer", py::is_final(), "gRPC over HTTP/2 on threads without Python.")
      .def(py::init(&make_server), py::arg("router").none(false), py::arg("methods"), py::kw_only(),
           py::arg("handler_calls_max") = 1000, py::arg("loops") = defaults.loops,
           py::arg("message_bytes_max") = defaults.message_bytes_max,
           py::arg("header_bytes_max") = defaults.header_bytes_max, py::arg("streams_max") = defaults.streams_max,
           py::arg("connections_max") = defaults.connections_max, py::arg("requests_max") = defaults.requests_max,
           py::arg("buffered_bytes_max") = defaults.buffered_bytes_max,
           py::arg("request") = seconds_of(defaults.request_ns), py::arg("idle") = seconds_of(defaults.idle_ns),
           py::arg("age") = seconds_of(defaults.age_ns), py::arg("age_grace") = seconds_of(defaults.age_grace_ns),
           py::arg("ping") = seconds_of(defaults.ping_ns), py::arg("ping_answer") = seconds_of(defaults.ping_answer_ns),
           py::keep_alive<1, 2>())
      .def("set_tls", &ServerHandle::set_tls, py::arg("private_key"), py::arg("certificate"), py::arg("client_ca"),
           py::arg("verify_client"))
      .def("start", &ServerHandle::start, py::arg("host"), py::arg("port"), py::arg("socket_path") = "")
      .def("refuse", &ServerHandle::refuse)
      .def("stop", &ServerHandle::stop, py::arg("drain"), py::arg("send"))
      .def("next_call", &ServerHandle::next_call)
      .def("set_health", &ServerHandle::set_health, py::arg("service"), py::arg("serving"));
}

}  // namespace headrace
