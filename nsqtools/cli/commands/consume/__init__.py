"""The commands that consume topics into a sink: one module each."""
