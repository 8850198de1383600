"""Facts to plant in a text and ask for: things with a number."""

from msgspec import Struct

SUBJECTS = (
    "magic number of Paris", "code of the garage door", "number of the flight to Tokyo", "password of the old computer",
    "number of Peter's locker", "lucky number of Maria", "serial number of the piano", "postal code of Greenfield",
    "room number of Doctor Lee", "price of the red bicycle", "combination of the safe", "population of Willowbrook",
    "number of the train to Vienna", "account number of Mr. Harris", "PIN of Anna's card", "phone number of the Boston bakery",
)
"""The subjects of facts, each in words of its own."""


class Fact(Struct, frozen=True):
    subject: str
    value: str

    @property
    def sentence(self) -> str:
        return f"The {self.subject} is {self.value}."

    @property
    def asked(self) -> str:
        return f"What is the {self.subject}?"

    @property
    def beginning(self) -> str:
        """The beginning of the answer."""
        return f"The {self.subject} is"


def first_number(text: str) -> str | None:
    digits = "".join(c if c.isdigit() else " " for c in text).split()
    return digits[0] if digits else None
