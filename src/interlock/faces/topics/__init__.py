"""The topics of a node towards the network: sockets, the door to them, and the admin's endpoint.

What a topic is, who may say what and who hears it is decided in `pipeline/topics`; these rooms only
carry bytes.
"""
