"""The world outside the machines: files, sockets, processes and clocks."""
