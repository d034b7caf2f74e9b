// SPDX-License-Identifier: Apache-2.0

#include "net/health_table.h"

#include <utility>

#include "wire/proto.h"

namespace headrace {
namespace {

constexpr std::uint32_t kService = make_tag(1, WireType::kBytes);  // of HealthCheckRequest
constexpr std::uint32_t kStatus = make_tag(1, WireType::kVarint);  // of HealthCheckResponse

Status parse_request(std::string_view request, std::string_view* service) {
  FieldReader fields(request);
  for (Field field; fields.next(&field);)
    if (field.tag == kService) *service = field.bytes;
  return fields.ok() && is_utf8(*service)
             ? Status()
             : InvalidArgument("not a message of this method: a malformed HealthCheckRequest");
}

std::string response_of(Serving serving) {
  if (serving == Serving::kUnknown) return {};  // proto3 leaves zeros out
  return {static_cast<char>(kStatus), static_cast<char>(serving)};
}

}  // namespace

void HealthTable::set(const std::string& service, Serving serving) {
  std::lock_guard lock(mutex_);
  const auto [entry, added] = services_.try_emplace(service, serving);
  if (!added && entry->second == serving) return;
  entry->second = serving;
  for (const auto& [number, watch] : watches_)
    if (watch.service == service) watch.watcher(response_of(serving));
}

Status HealthTable::check(std::string_view request, std::string* response) const {
  std::string_view service;
  if (Status status = parse_request(request, &service); !status.ok()) return status;
  std::lock_guard lock(mutex_);
  const auto entry = services_.find(service);
  if (entry == services_.end()) return NotFound("no service \"" + std::string(service) + "\" here");
  *response = response_of(entry->second);
  return {};
}

Status HealthTable::watch(std::string_view request, Watcher watcher, std::uint64_t* number) {
  std::string_view service;
  if (Status status = parse_request(request, &service); !status.ok()) return status;
  std::lock_guard lock(mutex_);
  const auto entry = services_.find(service);
  *number = ++next_;
  const Watch& watch = watches_[*number] = {std::string(service), std::move(watcher)};
  // A service that is not in the table may come to be: its watchers are told so, and wait.
  watch.watcher(response_of(entry == services_.end() ? Serving::kServiceUnknown : entry->second));
  return {};
}

void HealthTable::unwatch(std::uint64_t number) {
  std::lock_guard lock(mutex_);
  watches_.erase(number);
}

}  // namespace headrace
