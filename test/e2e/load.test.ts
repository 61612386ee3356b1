import assert from 'node:assert/strict'
import { test } from 'node:test'
import { startProcess } from '../support/process.ts'
import { sampled } from '../support/scale.ts'
import { temporaryDirectory } from '../support/service.ts'

test('load: a low limit of open files is in the log at the start', async (t) => {
  const [connections, others] = [50, 96]
  const limits = [
    [connections + others - 1, true],
    [connections + others, false],
  ] as const
  for (const [maxDescriptors, isLow] of sampled(limits, 2)) {
    const settings = { PLANTS_MAX_CONNECTIONS: String(connections) }
    const directory = `${await temporaryDirectory()}/data`
    const service = await startProcess(t, directory, settings, ['serve'], { maxDescriptors })
    const needed = `"openFiles":${maxDescriptors},"needed":${connections + others}`
    const line = `"the limit of open files is low for PLANTS_MAX_CONNECTIONS",${needed}`
    assert.equal(service.output().includes(line), isLow, service.output())
    assert.equal(await service.kill('SIGTERM'), 0)
  }
})
