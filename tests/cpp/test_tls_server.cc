// SPDX-License-Identifier: Apache-2.0
//
// The whole server over TLS.

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <atomic>
#include <future>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "grpc_server_fixture.h"
#include "tls_client.h"

namespace headrace {
namespace {

class TlsServerTest : public GrpcServerTest {
 protected:
  TlsOptions options_of(const Identity& identity) const {
    return {.private_key = identity.private_key, .certificate = identity.certificate};
  }
  void start_tls(const TlsOptions& tls, const GrpcServerOptions& options = {}) {
    start(options);
    set_tls(tls);
  }
  void start_tls(const GrpcServerOptions& options = {}) { start_tls(options_of(identity_), options); }
  void set_tls(const TlsOptions& tls) {
    const Status status = server_->set_tls(tls);
    ASSERT_TRUE(status.ok()) << status.message();
  }

  // A client that was let in, and the TLS under it.
  std::pair<std::unique_ptr<Http2Client>, TlsClient*> connect(TlsClientOptions options = {},
                                                              std::int32_t window_bytes = -1) {
    if (options.server_ca.empty()) options.server_ca = authority_.certificate();
    auto tls = std::make_unique<TlsClient>(port_, options);
    TlsClient* const socket = tls.get();
    EXPECT_TRUE(socket->shake_hands()) << socket->error();
    return {std::make_unique<Http2Client>(std::move(tls), window_bytes), socket};
  }
  void expect_serves(TlsClientOptions options = {}) {
    const auto client = connect(std::move(options)).first;
    expect_ok(client->call(kPredict, request(1)), response(1));
  }

  const Authority authority_{"authority"};
  const Identity identity_ = authority_.issue("server");
};

constexpr int kVersions[] = {TLS1_2_VERSION, TLS1_3_VERSION};

// ---- Talking --------------------------------------------------------------------------------------------------------

TEST_F(TlsServerTest, AnswersPredictOverBothVersions) {
  start_tls();
  for (int version : kVersions) {
    const auto [client, tls] = connect({.version = version});
    EXPECT_EQ(tls->version(), version == TLS1_2_VERSION ? "TLSv1.2" : "TLSv1.3");
    EXPECT_EQ(tls->alpn(), "h2");
    EXPECT_EQ(tls->server_name(), "server");
    for (int i = 0; i < 20; ++i)
      expect_ok(client->call(kPredict, request(static_cast<float>(i))), response(static_cast<float>(i)));
    const std::int32_t id = client->begin(kPredict, request(9));
    client->reset(id);
    EXPECT_TRUE(client->flush());
  }
}

TEST_F(TlsServerTest, RefusesOlderVersions) {
  start_tls();
  for (int version : {TLS1_VERSION, TLS1_1_VERSION})
    EXPECT_EQ(TlsClient(port_, {.version = version}).refusal(), "tlsv1 alert protocol version");
  expect_serves();
}

TEST_F(TlsServerTest, LoopsShareTheConnections) {
  start_tls({.loops = 3});
  std::vector<std::unique_ptr<Http2Client>> clients;
  for (int i = 0; i < 9; ++i) clients.push_back(connect().first);
  for (int round = 0; round < 10; ++round) {
    std::vector<std::int32_t> calls;
    for (int i = 0; i < 9; ++i) {
      calls.push_back(clients[i]->begin(kPredict, request(100.F * round + i)));
      ASSERT_TRUE(clients[i]->flush());
    }
    for (int i = 0; i < 9; ++i) expect_ok(clients[i]->wait(calls[i]), response(100.F * round + i));
  }
}

TEST_F(TlsServerTest, CarriesLargeMessagesBothWays) {
  start_tls();
  for (int version : kVersions) {
    for (std::int32_t window_bytes : {-1, 16 << 20}) {
      const auto client = connect({.version = version}, window_bytes).first;
      std::vector<std::int32_t> calls;
      for (int i = 0; i < 3; ++i) calls.push_back(client->begin(kPredict, request(static_cast<float>(i), 1 << 19)));
      for (int i = 0; i < 3; ++i) expect_ok(client->wait(calls[i]), response(static_cast<float>(i), 1 << 19));
    }
  }
}

TEST_F(TlsServerTest, PutsRecordsTogetherFromBytesThatComeOneByOne) {
  start_tls();
  for (int version : kVersions) {
    const auto client = connect({.version = version, .byte_by_byte = true}).first;
    expect_ok(client->call(kPredict, request(1, 500)), response(1, 500));
  }
}

TEST_F(TlsServerTest, AClientThatDoesNotReadHoldsUpOnlyItself) {
  start_tls();
  for (int version : kVersions) {
    const auto deaf = connect({.version = version}, 0x7FFFFFFF).first;  // does not read what it would take
    const std::int32_t call = deaf->begin(kUnary, "large");
    ASSERT_TRUE(deaf->flush());
    std::string large(16 << 20, '\0');
    for (std::size_t i = 0; i < large.size(); ++i) large[i] = static_cast<char>(i / 7);
    handlers_.next()->answer({}, large);
    const auto client = connect().first;
    for (int i = 0; i < 20; ++i) expect_ok(client->call(kPredict, request(2)), response(2));
    expect_ok(deaf->wait(call), large);
  }
}

TEST_F(TlsServerTest, AHandshakeLargerThanTheSocketWaitsForTheClient) {
  TlsOptions options = options_of(identity_);
  const std::string large = Authority("large", std::string(60'000, 'x')).certificate();
  for (int i = 0; i < 100; ++i) options.certificate += large;
  start_tls(options);
  for (int version : kVersions) {
    auto slow = std::make_unique<TlsClient>(port_, TlsClientOptions{.version = version});
    slow->say_hello();
    expect_serves({.version = version});  // meanwhile
    ASSERT_TRUE(slow->shake_hands()) << slow->error();
    Http2Client client(std::move(slow));
    expect_ok(client.call(kPredict, request(1)), response(1));
  }
}

// ---- Who is let in --------------------------------------------------------------------------------------------------

TEST_F(TlsServerTest, WantsACertificateOfTheRightAuthority) {
  TlsOptions options = options_of(identity_);
  options.client_ca = Authority("another").certificate() + authority_.certificate();
  options.verify_client = true;
  start_tls(options);
  const Identity ours = authority_.issue("client");
  const Identity strange = Authority("authority").issue("client");
  for (int version : kVersions) {
    expect_serves({.version = version, .identity = ours});
    EXPECT_EQ(TlsClient(port_, {.version = version}).refusal(),
              version == TLS1_2_VERSION ? "sslv3 alert handshake failure" : "tlsv13 alert certificate required");
    const std::string refusal = TlsClient(port_, {.version = version, .identity = strange}).refusal();
    EXPECT_NE(refusal.find("alert"), std::string::npos) << refusal;
  }
  expect_serves({.identity = ours});
}

TEST_F(TlsServerTest, WithoutVerifyingItAsksForNoCertificate) {
  TlsOptions options = options_of(identity_);
  options.client_ca = authority_.certificate();
  start_tls(options);
  expect_serves();
  expect_serves({.identity = Authority("nobody").issue("client")});
}

TEST_F(TlsServerTest, NamesH2OrNothing) {
  start_tls();
  for (int version : kVersions) {
    expect_serves({.version = version, .alpn = "\10http/1.1\2h2"});
    expect_serves({.version = version, .alpn = ""});
    EXPECT_EQ(TlsClient(port_, {.version = version, .alpn = "\10http/1.1"}).refusal(),
              "tlsv1 alert no application protocol");
  }
}

TEST_F(TlsServerTest, ClosesOnWhatIsNotTls) {
  start_tls();
  EXPECT_TRUE(Http2Client(port_).wait_closed());
  std::mt19937 random(3);
  std::string noise(100'000, '\0');
  for (char& c : noise) c = static_cast<char>(random());
  const std::string hello = client_hello();
  for (const std::string& bytes : {std::string("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"), noise,
                                   hello.substr(0, 5) + noise, hello + noise, hello + hello}) {
    RawClient client(port_);
    client.send(bytes);
    client.receive_all();
  }
  expect_serves();
}

TEST_F(TlsServerTest, APlainPortClosesOnTls) {
  start();
  EXPECT_NE(TlsClient(port_).refusal(), "");
  Http2Client client(port_);
  expect_ok(client.call(kPredict, request(1)), response(1));
}

TEST_F(TlsServerTest, SurvivesRandomDamage) {
  start_tls();
  std::mt19937 random(7);
  const std::string hello = client_hello();
  for (int i = 0; i < 300; ++i) {
    std::string bytes = hello;
    for (int damage = 0; damage < 4; ++damage) bytes[random() % bytes.size()] = static_cast<char>(random());
    bytes.resize(bytes.size() - random() % 100);
    RawClient client(port_);
    client.send(bytes);
  }
  expect_serves();
}

TEST_F(TlsServerTest, ForgetsWhoLeavesInAHandshake) {
  start_tls({.connections_max = 2});
  const std::string hello = client_hello();
  for (std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{100}, hello.size()}) {
    {
      RawClient first(port_), second(port_);
      first.send(std::string_view(hello).substr(0, size));
      second.send(std::string_view(hello).substr(0, size));
    }
    for (;;) {  // until the server has seen that
      TlsClient tls(port_);
      if (tls.shake_hands()) break;
    }
  }
}

// ---- New certificates -----------------------------------------------------------------------------------------------

TEST_F(TlsServerTest, NewConnectionsGetTheNewCertificateAndOldOnesGoOn) {
  start_tls();
  const auto [old, old_tls] = connect();
  EXPECT_EQ(old_tls->server_name(), "server");
  set_tls(options_of(authority_.issue("renewed")));
  const auto [renewed, renewed_tls] = connect();
  EXPECT_EQ(renewed_tls->server_name(), "renewed");
  expect_ok(old->call(kPredict, request(1)), response(1));
  expect_ok(renewed->call(kPredict, request(2)), response(2));
  EXPECT_EQ(server_->set_tls({}).code(), Code::kInvalidArgument);
  EXPECT_EQ(connect().second->server_name(), "renewed");
}

TEST_F(TlsServerTest, TakesNewCertificatesWhileClientsConnect) {
  start_tls({.loops = 2});
  std::atomic<bool> done{false};
  std::thread renewing([&] {
    while (!done) set_tls(options_of(authority_.issue("server")));
  });
  std::vector<std::unique_ptr<Http2Client>> clients;
  for (int i = 0; i < 50; ++i) {
    clients.push_back(connect().first);
    for (const auto& client : clients)
      expect_ok(client->call(kPredict, request(static_cast<float>(i))), response(static_cast<float>(i)));
    if (clients.size() > 5) clients.erase(clients.begin());
  }
  done = true;
  renewing.join();
}

TEST_F(TlsServerTest, ATicketLetsNobodyInAfterANewContext) {
  TlsOptions options = options_of(identity_);
  options.client_ca = authority_.certificate();
  options.verify_client = true;
  start_tls(options);
  const Identity ours = authority_.issue("client");
  for (int version : kVersions) {
    const auto [first, first_tls] = connect({.version = version, .identity = ours});
    expect_ok(first->call(kPredict, request(1)), response(1));  // the ticket has come
    const std::unique_ptr<SSL_SESSION, decltype(&SSL_SESSION_free)> session(SSL_get1_session(first_tls->ssl()),
                                                                            SSL_SESSION_free);
    TlsClientOptions again{.version = version, .identity = ours, .resume = session.get()};
    const auto [second, second_tls] = connect(again);
    EXPECT_EQ(SSL_session_reused(second_tls->ssl()), 1);
    expect_ok(second->call(kPredict, request(1)), response(1));
    set_tls(options);
    const auto [third, third_tls] = connect(again);
    EXPECT_EQ(SSL_session_reused(third_tls->ssl()), 0);
    expect_ok(third->call(kPredict, request(1)), response(1));
    again.identity = {};
    EXPECT_NE(TlsClient(port_, again).refusal(), "");
  }
}

// ---- Ending ---------------------------------------------------------------------------------------------------------

TEST_F(TlsServerTest, CancelsWhatADisconnectedClientWaitedFor) {
  start_tls();
  runner_->hold();
  const auto other = connect().first;
  {
    const auto client = connect().first;
    client->begin(kPredict, request(1));
    ASSERT_TRUE(client->flush());
    ASSERT_TRUE(runner_->wait_for_runs(1));
    client->begin(kPredict, request(2));
    ASSERT_TRUE(client->flush());
    ASSERT_EQ(lane_->was_waiting_rows(), 1);
  }
  while (lane_->was_waiting_rows() != 0) ASSERT_TRUE(other->flush());
  runner_->release();
  expect_ok(other->call(kPredict, request(3)), response(3));
  EXPECT_EQ(runner_->rows_of_runs().size(), 2u);
}

TEST_F(TlsServerTest, DrainsWhenItStopsAndSaysThatItEnds) {
  start_tls({.loops = 2});
  runner_->hold();
  const auto [client, client_tls] = connect({.version = TLS1_2_VERSION});
  const auto [idle, idle_tls] = connect({.version = TLS1_3_VERSION});
  TlsClient shaking(port_);  // never says a word
  const std::int32_t before = client->begin(kPredict, request(1));
  ASSERT_TRUE(client->flush());
  ASSERT_TRUE(idle->flush());
  ASSERT_TRUE(runner_->wait_for_runs(1));
  auto stopped = std::async(std::launch::async, [&] { return server_->stop(60 * kSecondNs, 60 * kSecondNs); });
  ASSERT_TRUE(client->pump([&, client = client.get()] { return client->goaways() == 1; }));
  ASSERT_TRUE(idle->pump([&, idle = idle.get()] { return idle->goaways() == 1; }));
  runner_->release();
  expect_ok(client->wait(before), response(1));
  EXPECT_TRUE(client->wait_closed());
  EXPECT_TRUE(idle->wait_closed());
  EXPECT_TRUE(client_tls->was_told_the_end());
  EXPECT_TRUE(idle_tls->was_told_the_end());
  EXPECT_EQ(shaking.receive_all(), "");
  EXPECT_TRUE(stopped.get());
}

TEST_F(TlsServerTest, AnswersWhatIsLateWhenItStops) {
  start_tls();
  runner_->hold();
  const auto client = connect().first;
  const std::int32_t running = client->begin(kPredict, request(1));
  ASSERT_TRUE(client->flush());
  ASSERT_TRUE(runner_->wait_for_runs(1));
  auto stopped = std::async(std::launch::async, [&] { return server_->stop(0, 60 * kSecondNs); });
  expect_error(client->wait(running), Code::kUnavailable, "the server stopped before there was an answer");
  EXPECT_TRUE(client->wait_closed());
  EXPECT_FALSE(stopped.get());
}

TEST_F(TlsServerTest, StopsThoughAClientDoesNotRead) {
  start_tls();
  const auto deaf = connect({}, 0x7FFFFFFF).first;
  deaf->begin(kUnary, "large");
  ASSERT_TRUE(deaf->flush());
  handlers_.next()->answer({}, std::string(16 << 20, 'x'));
  const auto client = connect().first;
  expect_ok(client->call(kPredict, request(2)), response(2));
  EXPECT_TRUE(server_->stop(60 * kSecondNs, 10'000'000));
}

}  // namespace
}  // namespace headrace
