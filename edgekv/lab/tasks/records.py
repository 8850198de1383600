"""Records of people in a text, to be written as JSON."""

from random import Random

from edgekv.lab.tasks.task import Blank, Context, Question, TaskSample, spread, task

NAMES = ("Maria Keller", "Aiko Tanaka", "Omar Haddad", "Ingrid Solberg", "Tomasz Nowak", "Lucia Moretti", "Kofi Mensah",
         "Elena Petrova")
CITIES = ("Vienna", "Osaka", "Cairo", "Bergen", "Krakow", "Turin", "Accra", "Sofia")
JOBS = ("baker", "nurse", "teacher", "pilot", "painter", "lawyer", "farmer", "driver")

N_RECORDS = 3


@task("records", "three records in a text, each to be written as JSON: age, city and job are graded, the keys are given")
def records(random: Random, n_tokens: int, place: float) -> TaskSample:
    names, cities, jobs = (random.sample(values, N_RECORDS) for values in (NAMES, CITIES, JOBS))
    ages = [str(age) for age in random.sample(range(20, 80), N_RECORDS)]
    people = list(zip(names, ages, cities, jobs))
    needles = tuple(f"{name} is {age} years old, lives in {city} and works as a {job}." for name, age, city, job in people)
    questions = tuple(
        Question(f"Write what the text says about {name} as JSON.",
                 (Blank(f'{{"name": "{name}", "age":', age), Blank(', "city": "', city), Blank('", "job": "', job)))
        for name, age, city, job in people)
    return TaskSample(Context(n_tokens, needles=needles, depths=spread(N_RECORDS, place), skip=random.random() / 2), questions)
