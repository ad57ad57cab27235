// A key, and a certificate that it signs itself, for tests of TLS. For programs that link OpenSSL.
#pragma once

#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <cstdio>
#include <memory>
#include <string>

namespace quire::test {

template <auto Free>
struct FreeWith {
  template <class T>
  void operator()(T* p) const {
    Free(p);
  }
};

// As PEM files, for "localhost" and 127.0.0.1.
inline void write_tls_pair(const std::string& key_path, const std::string& certificate_path,
                           std::string passphrase = "") {
  const std::unique_ptr<EVP_PKEY, FreeWith<EVP_PKEY_free>> key(EVP_EC_gen("P-256"));
  const std::unique_ptr<X509, FreeWith<X509_free>> x(X509_new());
  X509_set_version(x.get(), 2);
  ASN1_INTEGER_set(X509_get_serialNumber(x.get()), 1);
  X509_gmtime_adj(X509_getm_notBefore(x.get()), -60);
  X509_gmtime_adj(X509_getm_notAfter(x.get()), 3600);
  X509_set_pubkey(x.get(), key.get());
  X509_NAME* name = X509_get_subject_name(x.get());
  X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char*>("localhost"), -1, -1, 0);
  X509_set_issuer_name(x.get(), name);
  const std::unique_ptr<X509_EXTENSION, FreeWith<X509_EXTENSION_free>> names(
      X509V3_EXT_conf_nid(nullptr, nullptr, NID_subject_alt_name, "DNS:localhost,IP:127.0.0.1"));
  X509_add_ext(x.get(), names.get(), -1);
  X509_sign(x.get(), key.get(), EVP_sha256());
  const auto write = [](const std::string& path, const auto& put) {
    std::FILE* f = std::fopen(path.c_str(), "wb");
    ASSERT_NE(f, nullptr);
    EXPECT_EQ(put(f), 1);
    std::fclose(f);
  };
  write(key_path, [&](std::FILE* f) {
    auto* const secret = passphrase.empty() ? nullptr : reinterpret_cast<unsigned char*>(passphrase.data());
    return PEM_write_PrivateKey(f, key.get(), secret == nullptr ? nullptr : EVP_aes_128_cbc(), secret,
                                static_cast<int>(passphrase.size()), nullptr, nullptr);
  });
  write(certificate_path, [&](std::FILE* f) { return PEM_write_X509(f, x.get()); });
}

}  // namespace quire::test
