// SPDX-License-Identifier: Apache-2.0

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "certificates.h"
#include "net/tls_context.h"

namespace headrace {
namespace {

class TlsContextTest : public testing::Test {
 protected:
  static void expect_refused(const TlsOptions& options, const std::string& beginning, const std::string& expected) {
    std::shared_ptr<const TlsContext> context;
    const Status status = TlsContext::make(options, &context);
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_EQ(status.message().substr(0, beginning.size()), beginning) << status.message();
    EXPECT_NE(status.message().find(expected), std::string::npos) << status.message();
    EXPECT_EQ(context, nullptr);
  }
  static void expect_taken(const TlsOptions& options) {
    std::shared_ptr<const TlsContext> context;
    const Status status = TlsContext::make(options, &context);
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_NE(context, nullptr);
  }

  TlsOptions options(const Identity& identity) const {
    return {.private_key = identity.private_key, .certificate = identity.certificate};
  }

  const Authority authority_{"authority"};
  const Identity identity_ = authority_.issue("server");
};

TEST_F(TlsContextTest, TakesAKeyAndItsCertificate) {
  expect_taken(options(identity_));
  expect_taken(options(authority_.issue("rsa", KeyPtr(EVP_RSA_gen(2048)))));
}

TEST_F(TlsContextTest, TakesAChainAndSeveralAuthorities) {
  TlsOptions options = this->options(identity_);
  options.certificate += "a comment\n" + authority_.certificate();
  options.client_ca = authority_.certificate() + Authority("other").certificate() + authority_.certificate();
  expect_taken(options);
  options.verify_client = true;
  expect_taken(options);
}

TEST_F(TlsContextTest, RefusesWhatIsNoKey) {
  for (const std::string& text : {std::string(), std::string("no key"), identity_.certificate,
                                  identity_.private_key.substr(0, identity_.private_key.size() / 2)}) {
    TlsOptions options = this->options(identity_);
    options.private_key = text;
    expect_refused(options, "private_key: no key can be read (",
                   "expected a PEM text with a \"-----BEGIN PRIVATE KEY-----\" block");
  }
}

TEST_F(TlsContextTest, RefusesAKeyWithAPassphraseWithoutAskingForIt) {
  TlsOptions options = this->options(identity_);
  options.private_key = pem_of(new_key().get(), "secret");
  expect_refused(options, "private_key: it is encrypted with a passphrase", "expected one without");
}

TEST_F(TlsContextTest, RefusesWhatIsNoCertificate) {
  const std::string& good = identity_.certificate;
  for (const std::string& text :
       {std::string(), std::string("no certificate"), identity_.private_key, good.substr(0, good.size() / 2)}) {
    TlsOptions options = this->options(identity_);
    options.certificate = text;
    expect_refused(options, "certificate: no certificate can be read (",
                   "expected a PEM text with \"-----BEGIN CERTIFICATE-----\" blocks");
  }
  TlsOptions options = this->options(identity_);
  options.certificate += good.substr(0, good.size() / 2);
  expect_refused(options, "certificate: no certificate 2 can be read (", "expected a PEM text");
}

TEST_F(TlsContextTest, RefusesACertificateOfAnotherKey) {
  TlsOptions options = this->options(identity_);
  options.private_key = authority_.issue("other").private_key;
  expect_refused(options, "private_key: ", "expected the key of the first certificate in the text of certificate");
  options.private_key = authority_.issue("rsa", KeyPtr(EVP_RSA_gen(2048))).private_key;
  expect_refused(options, "private_key: ", "expected the key of the first certificate in the text of certificate");
}

TEST_F(TlsContextTest, RefusesAKeyThatIsTooWeak) {
  expect_refused(options(authority_.issue("weak", KeyPtr(EVP_RSA_gen(512)))), "certificate: ", "key too small");
}

TEST_F(TlsContextTest, RefusesToVerifyClientsAgainstNothing) {
  TlsOptions options = this->options(identity_);
  options.verify_client = true;
  expect_refused(options, "client_ca: it is empty, and verify_client is set", "expected the PEM certificates");
  for (bool verify : {false, true}) {
    options.verify_client = verify;
    options.client_ca = "nobody";
    expect_refused(options, "client_ca: no certificate can be read (", "expected a PEM text");
  }
}

}  // namespace
}  // namespace headrace
