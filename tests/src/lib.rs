//! The harness of the network tests.
