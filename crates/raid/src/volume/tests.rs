//! Rules of a volume, with a machine that does as it is told.
