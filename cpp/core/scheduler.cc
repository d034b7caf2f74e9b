// SPDX-License-Identifier: Apache-2.0
//
// Stage 4 of 8: sort what came out of the mailbox into buckets, and choose the rows of the next batch.

#include "core/scheduler.h"

#include <algorithm>
#include <span>
#include <utility>

namespace headrace {
namespace {

// No type is negative, so this begins no key of inputs.
constexpr std::int64_t kAloneKey = -1;

std::span<const std::int64_t> trailing(const TensorView& input) {
  return std::span(input.shape).subspan(input.shape.empty() ? 0 : 1);
}

bool matches(const std::vector<std::int64_t>& key, const Request& request) {
  std::size_t at = 0;
  for (const TensorView& input : request.inputs) {
    const std::span<const std::int64_t> dims = trailing(input);
    if (key.size() < at + 2 + dims.size() || key[at] != static_cast<std::int64_t>(input.dtype) ||
        key[at + 1] != static_cast<std::int64_t>(dims.size()) ||
        !std::equal(dims.begin(), dims.end(), key.begin() + static_cast<std::ptrdiff_t>(at) + 2))
      return false;
    at += 2 + dims.size();
  }
  return at == key.size();
}

}  // namespace

Scheduler::~Scheduler() {
  for (auto& [key, bucket] : buckets_)
    while (bucket.head != nullptr) pop(bucket);
}

Scheduler::Buckets::iterator Scheduler::bucket_of(const Request& request) {
  if (request.alone) {
    const auto bucket = buckets_.try_emplace(Key{kAloneKey}).first;
    bucket->second.alone = true;
    return bucket;
  }
  if (latest_ != buckets_.end() && matches(latest_->first, request)) return latest_;
  Key key;
  for (const TensorView& input : request.inputs) {
    const std::span<const std::int64_t> dims = trailing(input);
    key.push_back(static_cast<std::int64_t>(input.dtype));
    key.push_back(static_cast<std::int64_t>(dims.size()));
    key.insert(key.end(), dims.begin(), dims.end());
  }
  return latest_ = buckets_.try_emplace(std::move(key)).first;
}

void Scheduler::absorb(Request* oldest_first) {
  while (oldest_first != nullptr) {
    Request* request = std::exchange(oldest_first, oldest_first->next);
    request->next = nullptr;
    Bucket& bucket = bucket_of(*request)->second;
    (bucket.tail == nullptr ? bucket.head : bucket.tail->next) = request;
    bucket.tail = request;
    bucket.rows += request->rows;
    earliest_deadline_ns_ = std::min(earliest_deadline_ns_, request->deadline_ns);
  }
}

RequestPtr Scheduler::pop(Bucket& bucket) {
  Request* request = bucket.head;
  bucket.head = std::exchange(request->next, nullptr);
  if (bucket.head == nullptr) bucket.tail = nullptr;
  bucket.rows -= request->rows;
  return {request, /*add_ref=*/false};
}

std::int64_t Scheduler::bucket_eligible_at_ns(const Bucket& bucket, bool closing) const {
  const std::int64_t arrival_ns = bucket.head->arrival_ns;
  return closing || bucket.alone ? arrival_ns : eligible_at_ns(options_, bucket.rows, arrival_ns);
}

Scheduler::Head Scheduler::head(std::int64_t now_ns, bool closing) const {
  Head head;
  for (const auto& [key, bucket] : buckets_) {
    const std::int64_t at_ns = bucket_eligible_at_ns(bucket, closing);
    if (at_ns <= now_ns)
      head.arrival_ns = std::min(head.arrival_ns, bucket.head->arrival_ns);
    else
      head.next_eligible_at_ns = std::min(head.next_eligible_at_ns, at_ns);
  }
  return head;
}

Scheduler::Buckets::iterator Scheduler::oldest_eligible(std::int64_t now_ns, bool closing) {
  auto oldest = buckets_.end();
  for (auto bucket = buckets_.begin(); bucket != buckets_.end(); ++bucket) {
    if (bucket_eligible_at_ns(bucket->second, closing) > now_ns) continue;
    if (oldest == buckets_.end() || bucket->second.head->arrival_ns < oldest->second.head->arrival_ns) oldest = bucket;
  }
  return oldest;
}

Scheduler::Formed Scheduler::form(std::int64_t now_ns, bool closing) {
  Formed formed;
  while (formed.batch == nullptr) {
    const auto bucket = oldest_eligible(now_ns, closing);
    if (bucket == buckets_.end()) break;
    fill(bucket->second, now_ns, closing, &formed);
    if (bucket->second.head != nullptr) continue;
    if (latest_ == bucket) latest_ = buckets_.end();
    buckets_.erase(bucket);
  }
  return formed;
}

void Scheduler::fill(Bucket& bucket, std::int64_t now_ns, bool closing, Formed* formed) {
  std::size_t head_bytes = 0;  // without strings, which are not copied into a slab
  for (const TensorView& input : bucket.head->inputs) head_bytes += input.bytes;
  const auto bytes_per_row = static_cast<std::int64_t>(head_bytes) / std::max<std::int64_t>(bucket.head->rows, 1);
  const auto rows_that_fit = static_cast<std::int64_t>(slab_bytes_max_) / std::max<std::int64_t>(bytes_per_row, 1);
  const std::int64_t rows_max = bucket.alone ? 1 : std::clamp<std::int64_t>(rows_that_fit, 1, options_.max_batch_size);
  BatchChooser chooser(service_, rows_max, bucket.rows, now_ns);
  std::vector<RequestPtr> taken;
  while (bucket.head != nullptr && !(bucket.alone && !taken.empty())) {
    if (bucket.head->was_answered()) {
      pop(bucket);
      continue;
    }
    const BatchChooser::Verdict verdict = chooser.consider(bucket.head->rows, bucket.head->deadline_ns);
    if (verdict == BatchChooser::Verdict::kStop) break;
    RequestPtr request = pop(bucket);
    if (verdict == BatchChooser::Verdict::kExpire)
      formed->expired.push_back(std::move(request));
    else if (request->claim_run())
      taken.push_back(std::move(request));
    if (chooser.full()) break;
  }
  if (taken.empty()) return;
  BatchReason reason = options_.policy == Policy::kTimeout ? BatchReason::kWindow : BatchReason::kExecutorFree;
  if (closing) reason = BatchReason::kShutdown;
  if (chooser.full()) reason = BatchReason::kFull;
  if (bucket.alone) reason = BatchReason::kAlone;
  formed->batch = std::make_unique<Batch>(std::move(taken), reason, now_ns);
}

std::vector<RequestPtr> Scheduler::sweep(std::int64_t now_ns) {
  std::vector<RequestPtr> expired;
  earliest_deadline_ns_ = kNever;
  for (auto entry = buckets_.begin(); entry != buckets_.end();) {
    Bucket kept;
    kept.alone = entry->second.alone;
    while (entry->second.head != nullptr) {
      RequestPtr request = pop(entry->second);
      if (request->was_answered()) continue;
      if (request->deadline_ns <= now_ns) {
        expired.push_back(std::move(request));
        continue;
      }
      earliest_deadline_ns_ = std::min(earliest_deadline_ns_, request->deadline_ns);
      kept.rows += request->rows;
      Request* link = request.detach();
      (kept.tail == nullptr ? kept.head : kept.tail->next) = link;
      kept.tail = link;
    }
    entry->second = kept;
    if (kept.head != nullptr) {
      ++entry;
      continue;
    }
    if (latest_ == entry) latest_ = buckets_.end();
    entry = buckets_.erase(entry);
  }
  return expired;
}

}  // namespace headrace
