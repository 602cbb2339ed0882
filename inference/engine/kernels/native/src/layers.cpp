// What a layer does with each token by itself.
#include "layers.h"
#include "linear.h"
#include "steering.h"
