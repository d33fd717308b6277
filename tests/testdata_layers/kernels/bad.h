#include "server/engine.h"
