// Nothing: headers.cmake asks CMake for precompiled headers, and they belong to a target with a source.
