// Bindings of the TCP transport: what ringreduce/basics.py makes for a job on several hosts.
#include <pybind11/stl.h>

#include <cstring>

#include "python/bindings.h"
#include "python/memory.h"
#include "transport/tcp/tcp_network.h"

namespace rr {
namespace {

Encrypt encrypt_of(const std::string& word) {
  if (word == "auto") return Encrypt::kAuto;
  if (word == "on") return Encrypt::kOn;
  if (word == "off") return Encrypt::kOff;
  throw InvalidArgumentError("TcpNetwork: encrypt is auto, on or off, not \"" + word + "\"");
}

std::shared_ptr<TcpNetwork> make(int rank, int listener, const std::vector<std::pair<std::string, int>>& addresses,
                                 const py::bytes& key, int lost_after_ms, const std::string& encrypt) {
  TcpOptions options;
  options.rank = rank;
  options.listener = Fd(listener);
  options.lost_after_ms = lost_after_ms;
  options.encrypt = encrypt_of(encrypt);
  for (const auto& [host, port] : addresses) options.addresses.push_back(TcpAddress::from(host, port));
  if (rank < 0 || static_cast<size_t>(rank) >= addresses.size()) {
    throw InvalidArgumentError("TcpNetwork: there is no rank " + std::to_string(rank));
  }
  const std::string text = key;
  if (text.size() != options.key.size()) throw InvalidArgumentError("TcpNetwork: the key has 32 bytes");
  std::memcpy(options.key.data(), text.data(), text.size());
  const py::gil_scoped_release release;
  return TcpNetwork::create(std::move(options));
}

}  // namespace

void bind_tcp(py::module_& m) {
  m.def("libcrypto_name", &libcrypto_name);
  py::class_<TcpNetwork, std::shared_ptr<TcpNetwork>>(m, "TcpNetwork")
      .def(py::init(&make), py::arg("rank"), py::arg("listener"), py::arg("addresses"), py::arg("key"),
           py::arg("lost_after_ms") = TcpOptions().lost_after_ms, py::arg("encrypt") = "auto");
}

}  // namespace rr
