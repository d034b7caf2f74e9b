// SPDX-License-Identifier: Apache-2.0
//
// independent_client ADDRESS [CHANNEL_ARGUMENT=NUMBER...]: a gRPC C++ client that does what lines of its input say and
// answers in lines of its output; tests/e2e/test_independent_client.py writes and reads them.  Bytes are in
// hexadecimal.
//
//   start ID PATH MESSAGE [timeout_ms=N] [compress=gzip|deflate] [wait_for_ready=1] [NAME:=VALUE...]
//   finish ID     -> CODE TEXT REPLY      of a call that was started
//   cancel ID
//   open ID PATH MESSAGE                  a stream of replies to one message
//   read ID       -> a REPLY, or `end CODE TEXT`
//
// A `-` stands for no bytes.  NAME:=VALUE is a header.

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <future>
#include <iostream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace {

std::string from_hex(std::string_view text) {
  std::string bytes;
  if (text == "-") return bytes;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2)
    bytes += static_cast<char>(std::stoi(std::string(text.substr(i, 2)), nullptr, 16));
  return bytes;
}

std::string to_hex(std::string_view bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const char c : bytes) {
    text += kDigits[static_cast<unsigned char>(c) >> 4];
    text += kDigits[static_cast<unsigned char>(c) & 15];
  }
  return text.empty() ? "-" : text;
}

grpc::ByteBuffer buffer_of(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

std::string bytes_of(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  std::string bytes;
  if (!buffer.Valid() || !buffer.Dump(&slices).ok()) return bytes;
  for (const grpc::Slice& slice : slices) bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  return bytes;
}

std::string text_of(const grpc::Status& status) {
  return std::to_string(status.error_code()) + ' ' + to_hex(status.error_message());
}

void set_option(const std::string& option, grpc::ClientContext* context) {
  const std::size_t equals = option.find('=');
  const std::string name = option.substr(0, equals), value = option.substr(equals + 1);
  if (name.back() == ':')
    context->AddMetadata(name.substr(0, name.size() - 1), from_hex(value));
  else if (name == "timeout_ms")
    context->set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(std::stoi(value)));
  else if (name == "compress")
    context->set_compression_algorithm(value == "gzip" ? GRPC_COMPRESS_GZIP : GRPC_COMPRESS_DEFLATE);
  else if (name == "wait_for_ready")
    context->set_wait_for_ready(true);
  else
    std::cerr << "no such option: " << option << '\n';
}

struct Unary {
  grpc::ClientContext context;
  grpc::ByteBuffer request, reply;
  std::promise<grpc::Status> status;
};

class Stream {
 public:
  Stream(grpc::GenericStub& stub, const std::string& path, const std::string& message)
      : reader_(stub.PrepareCall(&context, path, &queue_)) {
    reader_->StartCall(this);
    wait();
    reader_->WriteLast(buffer_of(message), {}, this);
    wait();
  }

  ~Stream() {
    context.TryCancel();
    while (!finished_) read();
    queue_.Shutdown();
  }

  std::string read() {
    grpc::ByteBuffer reply;
    reader_->Read(&reply, this);
    if (wait()) return to_hex(bytes_of(reply));
    grpc::Status status;
    reader_->Finish(&status, this);
    wait();
    finished_ = true;
    return "end " + text_of(status);
  }

  grpc::ClientContext context;

 private:
  bool wait() {
    void* tag = nullptr;
    bool ok = false;
    return queue_.Next(&tag, &ok) && ok;
  }

  grpc::CompletionQueue queue_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> reader_;
  bool finished_ = false;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "usage: independent_client ADDRESS [CHANNEL_ARGUMENT=NUMBER...]\n";
    return 2;
  }
  grpc::ChannelArguments arguments;
  for (int i = 2; i < argc; ++i) {
    const std::string argument = argv[i];
    const std::size_t equals = argument.find('=');
    arguments.SetInt(argument.substr(0, equals), std::stoi(argument.substr(equals + 1)));
  }
  grpc::GenericStub stub(grpc::CreateCustomChannel(argv[1], grpc::InsecureChannelCredentials(), arguments));
  std::map<std::string, Unary> calls;
  std::map<std::string, Stream> streams;

  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string command, id, path, message;
    words >> command >> id;
    if (command == "start") {
      words >> path >> message;
      Unary& call = calls[id];
      call.request = buffer_of(from_hex(message));
      for (std::string option; words >> option;) set_option(option, &call.context);
      stub.UnaryCall(&call.context, path, grpc::StubOptions(), &call.request, &call.reply,
                     [&call](grpc::Status status) { call.status.set_value(std::move(status)); });
    } else if (command == "finish") {
      Unary& call = calls.at(id);
      const grpc::Status status = call.status.get_future().get();
      std::cout << text_of(status) << ' ' << to_hex(bytes_of(call.reply)) << std::endl;
      calls.erase(id);
    } else if (command == "open") {
      words >> path >> message;
      streams.try_emplace(id, stub, path, from_hex(message));
    } else if (command == "read") {
      std::cout << streams.at(id).read() << std::endl;
    } else if (command == "cancel") {
      (calls.count(id) != 0 ? calls.at(id).context : streams.at(id).context).TryCancel();
    } else {
      std::cerr << "no such command: " << line << '\n';
      return 2;
    }
  }
  for (auto& [id, call] : calls) {
    call.context.TryCancel();
    call.status.get_future().wait();
  }
  return 0;
}
