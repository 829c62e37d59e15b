"""Transactions under faults: the product's coordinators and logs between a modelled network, elections and producers.

    tidegate chaos sim transactions --seeds 1000 --first 0 --version 2
"""
