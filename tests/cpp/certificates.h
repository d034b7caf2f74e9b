// SPDX-License-Identifier: Apache-2.0
//
// Authority: issues certificates for the time of a test.
//
// Thread safety: one thread at a time.

#pragma once

#include <openssl/bio.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rsa.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <memory>
#include <string>

namespace headrace {

// In PEM.
struct Identity {
  std::string private_key;
  std::string certificate;
};

struct FreeOfOpenssl {
  void operator()(BIO* bio) const { BIO_free(bio); }
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(X509_EXTENSION* extension) const { X509_EXTENSION_free(extension); }
};

using KeyPtr = std::unique_ptr<EVP_PKEY, FreeOfOpenssl>;
using CertificatePtr = std::unique_ptr<X509, FreeOfOpenssl>;
using BioPtr = std::unique_ptr<BIO, FreeOfOpenssl>;

inline std::string text_of(BIO* bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio, &data);
  return {data, static_cast<std::size_t>(size)};
}

// With a passphrase: encrypted.
inline std::string pem_of(EVP_PKEY* key, const char* passphrase = nullptr) {
  const BioPtr bio(BIO_new(BIO_s_mem()));
  PEM_write_bio_PrivateKey(bio.get(), key, passphrase == nullptr ? nullptr : EVP_aes_128_cbc(), nullptr, 0, nullptr,
                           const_cast<char*>(passphrase));
  return text_of(bio.get());
}

inline std::string pem_of(X509* certificate) {
  const BioPtr bio(BIO_new(BIO_s_mem()));
  PEM_write_bio_X509(bio.get(), certificate);
  return text_of(bio.get());
}

inline KeyPtr new_key() { return KeyPtr(EVP_EC_gen("P-256")); }

class Authority {
 public:
  // A comment makes its own certificate as large as one likes.
  explicit Authority(const std::string& name, const std::string& comment = "")
      : key_(new_key()), certificate_(sign(name, key_.get(), nullptr, key_.get(), comment)) {}

  std::string certificate() const { return pem_of(certificate_.get()); }

  Identity issue(const std::string& name, KeyPtr key = new_key()) const {
    return {pem_of(key.get()), pem_of(sign(name, key.get(), certificate_.get(), key_.get(), "").get())};
  }

 private:
  // Valid from an hour ago for a day; without an issuer it is its own.
  static CertificatePtr sign(const std::string& name, EVP_PKEY* key, X509* issuer, EVP_PKEY* issuers_key,
                             const std::string& comment) {
    CertificatePtr made(X509_new());
    X509_set_version(made.get(), X509_VERSION_3);
    ASN1_INTEGER_set(X509_get_serialNumber(made.get()), issuer == nullptr ? 1 : 2);
    X509_gmtime_adj(X509_getm_notBefore(made.get()), -3600);
    X509_gmtime_adj(X509_getm_notAfter(made.get()), 24 * 3600);
    X509_set_pubkey(made.get(), key);
    X509_NAME* const subject = X509_get_subject_name(made.get());
    X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_UTF8, reinterpret_cast<const unsigned char*>(name.c_str()), -1,
                               -1, 0);
    X509_set_issuer_name(made.get(), issuer == nullptr ? subject : X509_get_subject_name(issuer));
    extend(made.get(), NID_basic_constraints, issuer == nullptr ? "critical,CA:TRUE" : "CA:FALSE");
    if (!comment.empty()) extend(made.get(), NID_netscape_comment, comment);
    X509_sign(made.get(), issuers_key, EVP_sha256());
    return made;
  }

  static void extend(X509* certificate, int nid, const std::string& value) {
    const std::unique_ptr<X509_EXTENSION, FreeOfOpenssl> extension(
        X509V3_EXT_conf_nid(nullptr, nullptr, nid, value.c_str()));
    X509_add_ext(certificate, extension.get(), -1);
  }

  KeyPtr key_;
  CertificatePtr certificate_;
};

}  // namespace headrace
