#include "os/tcp/unsent.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>

namespace rr {

bool has_unsent(int fd) {
  int nbytes = 0;
  return ::ioctl(fd, SIOCOUTQNSD, &nbytes) == 0 && nbytes > 0;
}

}  // namespace rr
