"""Parts of the client's front end; use :class:`privml.protocols.fhe.frequency.Frequency`."""
