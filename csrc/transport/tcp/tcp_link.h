// The bytes of one connection.
#pragma once

#include <functional>
#include <memory>

#include "transport/link.h"
#include "transport/tcp/connection.h"

namespace rr {

// dial: called once, at the first use of a connection that is not open. drop: called when the link goes.
// me: of the rank here, for messages.
std::unique_ptr<Link> tcp_link(std::shared_ptr<TcpConnection> connection, int me, std::function<void()> dial,
                               std::function<void()> drop);

}  // namespace rr
