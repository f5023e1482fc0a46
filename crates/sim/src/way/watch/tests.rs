//! The watch itself: what it calls broken, and what not.
