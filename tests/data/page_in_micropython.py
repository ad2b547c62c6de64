import json

from page import fields, link, sections

with open("/data.json") as file:
    data = json.loads(file.read())

for name in data["modules"]:
    with open("/" + name) as file:
        compile(file.read(), name, "exec")
print(
    json.dumps(
        {
            "sections": [
                [sections.SECTIONS[name](result) for name in data["sections"]]
                + [sections.spoken(result), sections.effect(data["results"][0], result)]
                for result in data["results"]
            ],
            "figures": [sections.figure("memory", drawn) for drawn in data["figures"]],
            "numbers": [fields.number(text, 1, 1000000, whole=True) for text in data["texts"]],
            "links": [link.write(link.read(text)) for text in data["links"]],
        }
    )
)
