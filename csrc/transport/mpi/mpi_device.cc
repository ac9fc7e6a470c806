#include <algorithm>
#include <vector>

#include "transport/mpi/device_messages.h"
#include "transport/mpi/mpi_communicator.h"

namespace rr {
namespace {

class MpiDeviceMessage final : public DeviceMessages::Message {
 public:
  MpiDeviceMessage(std::shared_ptr<MpiCommunicator> communicator, std::vector<MpiMessagePtr> parts)
      : communicator_(std::move(communicator)), parts_(std::move(parts)) {}
  ~MpiDeviceMessage() override {
    for (const MpiMessagePtr& part : parts_) {
      communicator_->withdraw(part);  // a receive
      communicator_->abandon(part);   // a send
    }
  }
  MpiDeviceMessage(const MpiDeviceMessage&) = delete;
  MpiDeviceMessage& operator=(const MpiDeviceMessage&) = delete;

  bool done() override {
    while (!parts_.empty() && communicator_->test(parts_.back())) parts_.pop_back();
    return parts_.empty();
  }

 private:
  std::shared_ptr<MpiCommunicator> communicator_;
  std::vector<MpiMessagePtr> parts_;
};

class MpiDeviceMessages final : public DeviceMessages {
 public:
  MpiDeviceMessages(std::shared_ptr<MpiCommunicator> communicator, size_t most_nbytes)
      : communicator_(std::move(communicator)), most_nbytes_(most_nbytes) {}

  std::unique_ptr<Message> send(const std::byte* src, size_t nbytes, int world_rank, int group,
                                std::shared_ptr<void> keep) override {
    return start(const_cast<std::byte*>(src), nbytes, std::move(keep), [&](const MpiMessagePtr& part) {
      communicator_->send(part, part->nbytes, world_rank, device_tag(group), false);
    });
  }

  std::unique_ptr<Message> receive(std::byte* dst, size_t nbytes, int world_rank, int group,
                                   std::shared_ptr<void> keep) override {
    return start(dst, nbytes, std::move(keep),
                 [&](const MpiMessagePtr& part) { communicator_->receive(part, world_rank, device_tag(group)); });
  }

 private:
  template <class Start>
  std::unique_ptr<Message> start(std::byte* data, size_t nbytes, std::shared_ptr<void> keep, Start start) {
    std::vector<MpiMessagePtr> parts;
    for (size_t begin = 0; begin < nbytes; begin += most_nbytes_) {
      parts.push_back(std::make_shared<MpiMessage>(data + begin, std::min(most_nbytes_, nbytes - begin), keep));
      start(parts.back());
    }
    return std::make_unique<MpiDeviceMessage>(communicator_, std::move(parts));
  }

  std::shared_ptr<MpiCommunicator> communicator_;
  size_t most_nbytes_;
};

}  // namespace

std::shared_ptr<DeviceMessages> mpi_device_messages(std::shared_ptr<MpiCommunicator> communicator, size_t most_nbytes) {
  return std::make_shared<MpiDeviceMessages>(std::move(communicator), most_nbytes);
}

}  // namespace rr
