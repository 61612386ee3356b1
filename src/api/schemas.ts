/** The JSON schemas of the description. */
export const PLANT = { $ref: '#/components/schemas/Plant' }
export const NEW_PLANT = { $ref: '#/components/schemas/NewPlant' }
export const ERROR = { $ref: '#/components/schemas/Error' }

export const TEXT = { type: 'string' }
export const LIMIT = { type: 'integer', format: 'int32', minimum: 0 }
export const CURSOR = { type: 'string', minLength: 1 }
export const NEXT_PAGE = {
  type: 'string',
  pattern: '^<\\?limit=[0-9]+&after=[A-Za-z0-9_-]+>; rel="next"$',
}
export const CHALLENGE = { type: 'string', pattern: '^Bearer realm="plants"' }
export const SECONDS = { type: 'integer', minimum: 1 }
export const VISIBLE_ASCII = { type: 'string', pattern: '^[!-~]{1,128}$' }

const name = text('The name of the plant: any Unicode text.')
const tag = text('Tag that specifies the type of the plant: any Unicode text.')
// Without minimum and maximum: most tools read them as doubles, and would round the maximum out of
// range.
const id = integer(
  'int64',
  'Identification number of the plant: from -2^63 to 2^63 - 1, in any JSON notation. Clients ' +
    'that keep numbers as doubles are exact up to 2^53 only.',
)
const error = integer('int32', 'Numeric error value: 100 times the status plus a running number.')
const message = text('Error message text.')

/** Those that have a name in the description. */
export const SCHEMAS = {
  Plant: { type: 'object', required: ['name'], properties: { name, tag } },
  NewPlant: {
    description: 'Members of other names are ignored; two members of one name are an error.',
    allOf: [PLANT, { type: 'object', required: ['id'], properties: { id } }],
  },
  Error: { type: 'object', required: ['error', 'message'], properties: { error, message } },
}

function text(description: string): object {
  return { type: 'string', description }
}

function integer(format: 'int32' | 'int64', description: string): object {
  return { type: 'integer', format, description }
}
