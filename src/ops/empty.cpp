// placeholder until the layer has a source
