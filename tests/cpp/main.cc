// The C++ tests' main(). doctest's options work: rr_tests --list-test-cases, --test-case="ring*".
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "doctest/doctest.h"
