#include "server/schedule/engine.h"
