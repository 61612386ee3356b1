import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import '../http/body.test.ts'
import '../limits/budget.test.ts'
import '../http/causes.test.ts'
import '../http/framing.test.ts'
import '../http/http2.test.ts'
import '../http/parser.test.ts'
import '../http/streaming.test.ts'
import '../http/tick.test.ts'
import '../http/trace.test.ts'

// And those of test/api/ that no other group has: the test of a new operation needs no line here.
const GROUPS = readdirSync(import.meta.dirname).map((name) =>
  readFileSync(join(import.meta.dirname, name), 'utf8'),
)
for (const name of readdirSync(join(import.meta.dirname, '../api')))
  if (name.endsWith('.test.js') && !GROUPS.some((text) => text.includes(`'../api/${name}'`)))
    await import(`../api/${name}`)
