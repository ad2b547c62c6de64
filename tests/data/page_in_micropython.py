import json

from page import effect, fields, html, link
from page.format import escape

with open("/data.json") as file:
    data = json.loads(file.read())

for name in data["modules"]:
    with open("/" + name) as file:
        compile(file.read(), name, "exec")
print(
    json.dumps(
        {
            "effects": [effect.effect(data["briefs"][0], brief) for brief in data["briefs"]],
            "escaped": html.tag("p", escape("<b>&\"'"), title='">'),
            "numbers": [fields.number(text, 1, 1000000, whole=True) for text in data["texts"]],
            "links": [link.write(link.read(text)) for text in data["links"]],
        }
    )
)
