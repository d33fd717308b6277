#include "kernels/cpu/attention/attention.h"
