// SPDX-License-Identifier: Apache-2.0

#include <arpa/inet.h>
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <netdb.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "net/listener.h"

// A name that is both addresses of this machine, as "localhost" is on many.
extern "C" int getaddrinfo(const char* name, const char* service, const addrinfo* wanted, addrinfo** found) {
  using Function = decltype(&::getaddrinfo);
  static const auto real = reinterpret_cast<Function>(::dlsym(RTLD_NEXT, "getaddrinfo"));
  if (name == nullptr || std::strcmp(name, "both.test") != 0) return real(name, service, wanted, found);
  if (const int error = real("127.0.0.1", service, wanted, found); error != 0) return error;
  if (const int error = real("127.0.0.1", service, wanted, &(*found)->ai_next); error != 0) return error;
  return real("::1", service, wanted, &(*found)->ai_next->ai_next);
}

namespace headrace {
namespace {

using Listeners = std::vector<Listener>;

// 0, or errno.
int try_connect(const char* address, int port) {
  sockaddr_in6 to6{};
  sockaddr_in to4{};
  const bool is_ipv6 = ::inet_pton(AF_INET6, address, &to6.sin6_addr) == 1;
  to6.sin6_family = AF_INET6;
  to6.sin6_port = to4.sin_port = htons(static_cast<in_port_t>(port));
  to4.sin_family = AF_INET;
  if (!is_ipv6) ::inet_pton(AF_INET, address, &to4.sin_addr);
  const Descriptor socket(::socket(is_ipv6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const auto* to = is_ipv6 ? reinterpret_cast<const sockaddr*>(&to6) : reinterpret_cast<const sockaddr*>(&to4);
  return ::connect(socket.fd(), to, is_ipv6 ? sizeof to6 : sizeof to4) == 0 ? 0 : errno;
}

int try_connect(const std::string& path) {
  sockaddr_un to{};
  to.sun_family = AF_UNIX;
  path.copy(to.sun_path, sizeof to.sun_path - 1);
  const Descriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return ::connect(socket.fd(), reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0 ? 0 : errno;
}

bool has_ipv6() {
  Listeners listeners;
  int port = 0;
  return listen_on("::1", &port, &listeners).ok();
}

// A process that has whatever this one has, for as long as it lives.
class ForkedChild {
 public:
  ForkedChild() : pid_(::fork()) {
    if (pid_ == 0)
      for (;;) ::pause();
  }
  ForkedChild(const ForkedChild&) = delete;
  ForkedChild& operator=(const ForkedChild&) = delete;
  ~ForkedChild() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }

 private:
  const pid_t pid_;
};

// ---- Ports ----------------------------------------------------------------------------------------------------------

TEST(Listener, TakesAFreePort) {
  int port = 0;
  Listeners listeners;
  ASSERT_TRUE(listen_on("127.0.0.1", &port, &listeners).ok());
  EXPECT_GT(port, 0);
  ASSERT_EQ(listeners.size(), 1u);
  EXPECT_EQ(try_connect("127.0.0.1", port), 0);
}

TEST(Listener, RefusesATakenPort) {
  int port = 0;
  Listeners first, second;
  ASSERT_TRUE(listen_on("127.0.0.1", &port, &first).ok());
  const Status status = listen_on("127.0.0.1", &port, &second);
  EXPECT_EQ(status.code(), Code::kFailedPrecondition);
  EXPECT_EQ(status.message(), "port " + std::to_string(port) + ": address already in use; choose another with port=");
  EXPECT_TRUE(second.empty());
  first.clear();
  EXPECT_TRUE(listen_on("127.0.0.1", &port, &second).ok());
}

TEST(Listener, RefusesAHostThatIsNotThisMachine) {
  for (const char* host : {"not an address", "192.0.2.1", ""}) {
    int port = 0;
    Listeners listeners;
    const Status status = listen_on(host, &port, &listeners);
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << host;
    EXPECT_EQ(status.message(), "host '" + std::string(host) + "': not an address of this machine");
  }
}

TEST(Listener, TakesAllAddressesOfANameAtOnePort) {
  if (!has_ipv6()) GTEST_SKIP() << "no IPv6 here";
  for (int i = 0; i < 20; ++i) {
    int port = 0;
    Listeners listeners;
    ASSERT_TRUE(listen_on("both.test", &port, &listeners).ok());
    EXPECT_EQ(listeners.size(), 2u);
    EXPECT_EQ(try_connect("127.0.0.1", port), 0);
    EXPECT_EQ(try_connect("::1", port), 0);
  }
}

TEST(Listener, RefusesAPortThatIsTakenOnOneAddressOfAName) {
  if (!has_ipv6()) GTEST_SKIP() << "no IPv6 here";
  for (const char* taken_on : {"127.0.0.1", "::1"}) {
    int port = 0;
    Listeners taken, listeners;
    ASSERT_TRUE(listen_on(taken_on, &port, &taken).ok());
    EXPECT_EQ(listen_on("both.test", &port, &listeners).code(), Code::kFailedPrecondition) << taken_on;
    EXPECT_TRUE(listeners.empty());
  }
}

TEST(Listener, TakesIpv4TooWhereItTakesEveryAddress) {
  int port = 0;
  Listeners listeners;
  if (!has_ipv6()) GTEST_SKIP() << "no IPv6 here";
  ASSERT_TRUE(listen_on("::", &port, &listeners).ok());
  EXPECT_EQ(try_connect("127.0.0.1", port), 0);
  EXPECT_EQ(try_connect("::1", port), 0);
}

TEST(Listener, IsGoneThoughAForkedProcessHasIt) {
  int port = 0;
  Listeners listeners, again;
  ASSERT_TRUE(listen_on("127.0.0.1", &port, &listeners).ok());
  const ForkedChild child;
  listeners.clear();
  EXPECT_EQ(try_connect("127.0.0.1", port), ECONNREFUSED);
  EXPECT_TRUE(listen_on("127.0.0.1", &port, &again).ok());
  EXPECT_EQ(try_connect("127.0.0.1", port), 0);
}

// ---- Unix sockets ---------------------------------------------------------------------------------------------------

class UnixListener : public testing::Test {
 protected:
  UnixListener() {
    std::string pattern = std::filesystem::temp_directory_path() / "headrace-listener-XXXXXX";
    directory_ = ::mkdtemp(pattern.data());
    path_ = directory_ / "socket";
  }
  ~UnixListener() override { std::filesystem::remove_all(directory_); }

  Status listen(const std::string& path) { return listen_on_path(path, &listeners_); }
  void expect_refused(const std::string& path, Code code, const std::string& reason) {
    const Status status = listen(path);
    EXPECT_EQ(status.code(), code);
    EXPECT_EQ(status.message(), "socket path '" + path + "': " + reason + "; choose another with grpc_socket_path=");
  }

  std::filesystem::path directory_;
  std::string path_;
  Listeners listeners_;
};

TEST_F(UnixListener, IsAFileForAsLongAsItListens) {
  ASSERT_TRUE(listen(path_).ok());
  EXPECT_EQ(try_connect(path_), 0);
  listeners_.clear();
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(UnixListener, RefusesThePathOfALiveServer) {
  ASSERT_TRUE(listen(path_).ok());
  expect_refused(path_, Code::kFailedPrecondition, "a server listens there");
  EXPECT_EQ(try_connect(path_), 0);
}

TEST_F(UnixListener, ReplacesTheSocketOfADeadServer) {
  const pid_t server = ::fork();
  if (server == 0) ::_exit(listen(path_).ok() ? 0 : 1);
  int status = -1;
  ASSERT_EQ(::waitpid(server, &status, 0), server);
  ASSERT_EQ(status, 0);
  ASSERT_TRUE(std::filesystem::is_socket(path_));
  ASSERT_EQ(try_connect(path_), ECONNREFUSED);
  EXPECT_TRUE(listen(path_).ok());
  EXPECT_EQ(try_connect(path_), 0);
}

TEST_F(UnixListener, LeavesOtherFilesAlone) {
  std::ofstream(path_) << "notes";
  expect_refused(path_, Code::kFailedPrecondition, "a file that is no socket is there");
  EXPECT_EQ(std::filesystem::file_size(path_), 5u);
  std::filesystem::remove(path_);
  ASSERT_TRUE(listen(path_).ok());
  std::filesystem::remove(path_);
  Listeners others;
  ASSERT_TRUE(listen_on_path(path_, &others).ok());
  listeners_.clear();  // what is there is not its own
  EXPECT_EQ(try_connect(path_), 0);
}

TEST_F(UnixListener, RefusesWhatCanBeNoPath) {
  const std::string long_path = directory_ / std::string(100, 'x');
  expect_refused(long_path, Code::kInvalidArgument,
                 std::to_string(long_path.size()) + " bytes; the path of a socket has at most 107");
  const std::string parent = directory_ / "none";
  expect_refused(parent + "/socket", Code::kInvalidArgument, "'" + parent + "' is no directory");
  EXPECT_EQ(listen(std::string("a\0b", 3)).code(), Code::kInvalidArgument);
  EXPECT_EQ(listen("").code(), Code::kInvalidArgument);
}

TEST_F(UnixListener, SaysWhoMayNotListenThere) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::chmod(directory_.c_str(), 0700);
    if (::getuid() == 0 && ::setuid(65534) != 0) ::_exit(3);
    if (::getuid() != 65534) ::chmod(directory_.c_str(), 0500);
    const Status status = listen(path_);
    ::_exit(status.code() == Code::kPermissionDenied && status.message().find("not for uid") != std::string::npos ? 0
                                                                                                                  : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ::chmod(directory_.c_str(), 0700);
  EXPECT_EQ(status, 0);
}

TEST_F(UnixListener, IsGoneThoughAForkedProcessHasIt) {
  ASSERT_TRUE(listen(path_).ok());
  std::filesystem::create_hard_link(path_, path_ + "2");
  const ForkedChild child;
  listeners_.clear();
  EXPECT_EQ(try_connect(path_ + "2"), ECONNREFUSED);
  EXPECT_TRUE(listen(path_).ok());
}

TEST_F(UnixListener, RemovesItsFileFromWhereverItIs) {
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(directory_);
  ASSERT_TRUE(listen("socket").ok());
  std::filesystem::current_path(before);
  listeners_.clear();
  EXPECT_FALSE(std::filesystem::exists(path_));
}

}  // namespace
}  // namespace headrace
