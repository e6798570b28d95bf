"""Protobuf: the messages, their generated code, and the codec between them and the model. No I/O, no clock.

Nothing outside this package holds a message of the middleware contract; `codec` speaks model values and bytes.
"""
