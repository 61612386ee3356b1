/** Makes a log that calls a function for each line, and one that writes nothing. */
import { createLog, type Log } from '../../dist/telemetry/log.js'

type Write = (
  level: 'error' | 'info' | 'debug',
  message: string,
  fields?: Readonly<Record<string, unknown>>,
) => unknown

export const silent: Log = createLog('silent')

export function logOf(write: Write): Log {
  return {
    ...silent,
    error: (...line) => void write('error', ...line),
    info: (...line) => void write('info', ...line),
    debug: (...line) => void write('debug', ...line),
  }
}
