"""The commands of `edgekv lab`. They alone of the laboratory know a terminal."""

COMMANDS = {
    "quality": ("edgekv.lab.commands.quality", "quality", "Say what a KV mode costs in predictions and answers."),
    "trace": ("edgekv.lab.commands.trace", "trace", "Record where a model's attention goes, token by token."),
    "sim": ("edgekv.lab.commands.sim", "sim", "Replay recorded attention against policies, without a model."),
    "ladder": ("edgekv.lab.commands.ladder", "ladder", "Measure what each idea of the policies adds, rung by rung."),
    "report": ("edgekv.lab.commands.report", "report", "Make one HTML page of measured results, with pictures."),
}
