/*
 * Prints the description of the interface, an OpenAPI 3.1 document, from the table of operations,
 * what is said here of each, and the catalogue of errors. `make openapi` writes it to
 * `src/api/openapi.json`, and the service serves that file.
 */
import { STATUS_CODES } from 'node:http'
import { isDeepStrictEqual } from 'node:util'
import { type Operation, type Route, ROUTES } from '../dist/api/operations.js'
import { CATALOGUE, type Condition } from '../dist/errors.js'

/** A parameter, or a header. */
type Described = readonly [description: string, schema: object]

/** A body in JSON, with examples by name. */
type Content = readonly [
  description: string,
  schema: object,
  examples: Readonly<Record<string, unknown>>,
]

/** What is said of an operation. */
interface Description {
  /** Its first sentence is the summary. */
  readonly description: string
  /** What a GET is as a HEAD. */
  readonly headDescription?: string
  /** By name, those of the path and those of the query. */
  readonly parameters?: Readonly<Record<string, Described>>
  readonly requestBody?: Content
  /** With the status 200. */
  readonly response: Content
  /** Headers that only some of these responses have. */
  readonly headers?: Readonly<Record<string, Described>>
  /** The failures that not every operation has. */
  readonly errors: readonly Condition[]
}

/** Failures that OPTIONS can meet: it is answered before the token is checked. */
const OF_OPTIONS: readonly Condition[] = [
  'malformedRequest',
  'hostInvalid',
  'requestTimeout',
  'headersTooLarge',
  'storageUnavailable',
]
/** Failures of requests that match none of the operations. */
const OF_OTHERS: readonly Condition[] = [
  'pathUnknown',
  'methodNotAllowed',
  'methodUnknown',
  'versionUnsupported',
]
// Object.keys widens them to string; they are exactly the catalogue's own.
const CONDITIONS = Object.keys(CATALOGUE) as Condition[]

const DESCRIPTION =
  'Creates plant records, and lists those of the caller.\n\n' +
  'Every failure has an Error as its body; only a response to HEAD has no body. The values of ' +
  'its member `error` are stable; the messages are for people. After 408, 413, 431 and ' +
  'malformed HTTP (error 40001) the service closes the connection. No response may be cached. ' +
  'Pages of other origins may call it if the operator has listed their origins.\n\n' +
  'A Plant has no id, so a client keeps those that it chose. JavaScript rounds an id above 2^53, ' +
  'and the plant is stored under the rounded one. A plant without a tag leaves it out: null is ' +
  'an error. Query parameters of other names are ignored.\n\n' +
  'PUT, PATCH and DELETE are answered with 405, other methods with 501, other paths with 404. ' +
  'Where it is mounted in a server of HTTP/2, HTTP/2 is answered with 505.'

const PLANT = { $ref: '#/components/schemas/Plant' }
const NEW_PLANT = { $ref: '#/components/schemas/NewPlant' }
const LIMIT = { type: 'integer', format: 'int32', minimum: 0 }
const CURSOR = { type: 'string', minLength: 1 }
const NEXT_PAGE = {
  type: 'string',
  pattern: '^<plants\\?limit=[0-9]+&after=[A-Za-z0-9_-]+>; rel="next"$',
}
const MONSTERA = { name: 'Monstera', tag: 'indoor' }

/** By the operation's name. */
const DESCRIPTIONS: Readonly<Record<string, Description>> = {
  listPlants: {
    description: 'Lists the plants of the caller, ascending by id.',
    headDescription: 'Returns the headers of a list.',
    parameters: {
      limit: ['Maximum number of results; without it, all.', LIMIT],
      after: ['Only plants after this cursor, which a Link header contains.', CURSOR],
    },
    response: [
      'The plants.',
      { type: 'array', items: PLANT },
      { page: [MONSTERA, { name: 'Aloe' }] },
    ],
    headers: { Link: ['The next page, if `limit` cut the list (RFC 8288).', NEXT_PAGE] },
    errors: ['limitInvalid', 'afterInvalid'],
  },
  createPlant: {
    description:
      'Creates a plant. Repeating it is safe: the same id with the same content gets the same ' +
      'response. Each owner has ids of its own.',
    requestBody: [
      'In UTF-8; 1 MiB at most unless the service is configured otherwise.',
      NEW_PLANT,
      { plant: { id: 7, ...MONSTERA } },
    ],
    response: ['The plant is stored, and durable.', PLANT, { plant: MONSTERA }],
    errors: [
      'contentTypeRepeated',
      'bodyNotUtf8',
      'bodyNotJson',
      'memberRepeated',
      'nameInvalid',
      'idInvalid',
      'tagInvalid',
      'overQuota',
      'idTaken',
      'bodyTooLarge',
      'mediaTypeUnsupported',
      'contentEncodingUnsupported',
      'storageFull',
    ],
  },
}
const OF_SOME = Object.values(DESCRIPTIONS).flatMap(({ errors }) => errors)
/** An error that no operation calls its own is met by all of them. */
const OF_ALL = CONDITIONS.filter((condition) => !OF_SOME.includes(condition))

const ERROR = { $ref: '#/components/schemas/Error' }
const TEXT = { type: 'string' }
const CHALLENGE = { type: 'string', pattern: '^Bearer realm="plants"' }
const SECONDS = { type: 'integer', minimum: 1 }
const VISIBLE_ASCII = { type: 'string', pattern: '^[!-~]{1,128}$' }
const CHALLENGED = header('RFC 6750.', CHALLENGE)
const RETRY = header('Seconds to wait.', SECONDS)
const REQUEST_ID = header(
  'That of the request, or without one its X-Request-Id, if it was valid; else a new one.',
  VISIBLE_ASCII,
)

const name = { ...TEXT, description: 'The name of the plant: any Unicode text.' }
const tag = { ...TEXT, description: 'Tag that specifies the type of the plant: any Unicode text.' }
// Without minimum and maximum: most tools read them as doubles, and would round the maximum out of
// range.
const id = integer(
  'int64',
  'Identification number of the plant: from -2^63 to 2^63 - 1, in any JSON notation. Clients ' +
    'that keep numbers as doubles are exact up to 2^53 only.',
)
const error = integer('int32', 'Numeric error value: 100 times the status plus a running number.')
const message = { ...TEXT, description: 'Error message text.' }

/** Those that have a name in the description. */
const SCHEMAS = {
  Plant: { type: 'object', required: ['name'], properties: { name, tag } },
  NewPlant: {
    description: 'Members of other names are ignored; two members of one name are an error.',
    allOf: [PLANT, { type: 'object', required: ['id'], properties: { id } }],
  },
  Error: { type: 'object', required: ['error', 'message'], properties: { error, message } },
}

/** Headers of failures besides the Request-Id, by status. */
const FAILURE_HEADERS: Readonly<Record<string, object>> = {
  400: { 'WWW-Authenticate': header('RFC 6750; with error 40003 only.', CHALLENGE, false) },
  401: { 'WWW-Authenticate': CHALLENGED },
  403: { 'WWW-Authenticate': header('RFC 6750; with error 40301 only.', CHALLENGE, false) },
  415: { 'Accept-Encoding': header('With error 41502 only.', { const: 'identity' }, false) },
  429: { 'Retry-After': RETRY },
  503: { 'Retry-After': RETRY },
  default: { Allow: header('The allowed methods; with error 40501 only.', TEXT, false) },
}

/** What several operations have alike, by kind and name: the description has it once. */
const COMPONENTS: Record<string, Record<string, object>> = { schemas: SCHEMAS }

// A reference on one line: a new operation has many.
const text = JSON.stringify(description(), undefined, 2)
console.log(text.replace(/\{\s+("\$ref": "[^"]+")\s+\}/g, '{ $1 }'))

function description(): object {
  const token = 'A JWT of the configured issuer and audience. Its owner claim owns the plants.'
  return {
    openapi: '3.1.0',
    info: {
      title: 'Plant store',
      // That of the interface. A release has its own.
      version: '1.0.0',
      // Each operator has an address of its own, and the package has none.
      contact: { name: 'The operators of this service' },
      license: { name: 'MIT', identifier: 'MIT' },
      description: DESCRIPTION,
    },
    // Without a variable: generators take this text as their base URL.
    servers: [
      { url: 'http://127.0.0.1:8080', description: 'Where the service listens by default.' },
    ],
    security: [{ bearer: [] }],
    tags: [{ name: 'plants', description: 'The plants of the caller.' }],
    paths: Object.fromEntries(ROUTES.map((route) => [route.path, pathItem(route)])),
    // Those that the paths refer to, which are made by now.
    components: {
      ...COMPONENTS,
      securitySchemes: {
        bearer: { type: 'http', scheme: 'bearer', bearerFormat: 'JWT', description: token },
      },
    },
  }
}

/** The methods of a path, OPTIONS included. */
function pathItem({ path, byMethod }: Route): object {
  const methods: Record<string, object> = {}
  const parameters: Record<string, Described> = {}
  for (const [method, operation] of byMethod) {
    methods[method.toLowerCase()] = describe(operation, method === 'HEAD')
    Object.assign(parameters, descriptionOf(operation).parameters)
  }
  const name = path.slice(1).replace(/\W+(\w?)/g, (_, letter: string) => letter.toUpperCase())
  const allowed = respond(['No Content'], { Allow: header('The allowed methods.', TEXT) })
  const options = {
    ...title(`${name}Options`, 'Returns the allowed methods. Needs no token.'),
    security: [],
    responses: {
      204: component('responses', 'AllowedMethods', allowed),
      ...failures([...OF_OPTIONS, ...OF_OTHERS]),
    },
  }
  return { parameters: parametersIn('path', path, parameters), ...methods, options }
}

function descriptionOf({ name, method }: Operation): Description {
  const description = DESCRIPTIONS[name]
  if (description && (method === 'POST') === Boolean(description.requestBody)) return description
  throw new Error(`${name} needs a description, with a request body if it is a POST`)
}

/** A HEAD is a GET without bodies, and with another name: `headPlants` for `listPlants`. */
function describe(operation: Operation, isHead: boolean): object {
  const { name, path } = operation
  const { description, headDescription = description, ...more } = descriptionOf(operation)
  const { parameters, requestBody, response, headers, errors } = more
  return {
    ...(isHead
      ? title(name.replace(/^[a-z]+/, 'head'), headDescription)
      : title(name, description)),
    parameters: parametersIn('query', path, parameters),
    requestBody: requestBody && { required: true, ...withContent(requestBody) },
    responses: {
      200: respond(
        isHead ? [response[0]] : response,
        mapped(headers, ([text, schema]) => header(text, schema, false)),
      ),
      ...failures([...OF_ALL, ...errors], isHead),
    },
  }
}

function title(operationId: string, description: string): object {
  const [summary] = description.split('.')
  return { operationId, summary, description, tags: ['plants'] }
}

/** A path has the parameters that it names; the others are of the query. */
function parametersIn(
  place: 'path' | 'query',
  path: string,
  parameters: Readonly<Record<string, Described>> = {},
): readonly object[] | undefined {
  const isInPath = place === 'path'
  const own = Object.entries(parameters)
    .filter(([name]) => path.includes(`{${name}}`) === isInPath)
    .map(([name, [description, schema]]) => {
      const parameter = { name, in: place, required: isInPath || undefined, description, schema }
      // GET and HEAD have those of the query.
      return isInPath ? parameter : component('parameters', name, parameter)
    })
  return own.length > 0 ? own : undefined
}

/**
 * Failures by status, each with an example of every condition. A status of which an operation has
 * conditions of its own is described in its place; any other is a component.
 */
function failures(met: readonly Condition[], isHead = false): Readonly<Record<string, object>> {
  const byStatus: Record<string, Condition[]> = {}
  for (const condition of CONDITIONS)
    if (met.includes(condition)) (byStatus[statusOf(condition)] ??= []).push(condition)
  return mapped(byStatus, (ofStatus, status) => {
    const reason = STATUS_CODES[status]
    const description = reason ?? 'A request that is none of these operations.'
    const examples = Object.fromEntries(ofStatus.map((each) => [each, exampleOf(each)]))
    const content = isHead ? undefined : jsonContent(ERROR, examples)
    const response = { ...respond([description], FAILURE_HEADERS[status]), content }
    if (ofStatus.some((condition) => OF_SOME.includes(condition))) return response
    // OPTIONS meets fewer.
    const isWhole = OF_ALL.every((each) => statusOf(each) !== status || ofStatus.includes(each))
    const name = (reason ?? 'Others').replaceAll(' ', '') + (isWhole ? '' : 'ToOptions')
    return component('responses', isHead ? `${name}ToHead` : name, response)
  })
}

function statusOf(condition: Condition): string {
  const [error] = CATALOGUE[condition]
  return OF_OTHERS.includes(condition) ? 'default' : String(Math.floor(error / 100))
}

function exampleOf(condition: Condition): object {
  const [error, message] = CATALOGUE[condition]
  return component('examples', condition, { value: { error, message } })
}

/** A reference to what is described once, among the components. */
function component(kind: string, name: string, value: object): object {
  const known = ((COMPONENTS[kind] ??= {})[name] ??= value)
  if (!isDeepStrictEqual(known, value)) throw new Error(`there are two ${kind} ${name}`)
  return { $ref: `#/components/${kind}/${name}` }
}

/** A response; without schema it has no body. */
function respond(content: Content | readonly [description: string], headers = {}): object {
  const requestId = component('headers', 'Request-Id', REQUEST_ID)
  const allHeaders = { 'Request-Id': requestId, ...headers }
  return { description: content[0], headers: allHeaders, ...withContent(content) }
}

function withContent([description, schema, examples]: Content | readonly [string]): object {
  const values = mapped(examples, (value) => ({ value }))
  return { description, content: schema && jsonContent(schema, values) }
}

function jsonContent(schema: object, examples: object): object {
  return { 'application/json': { schema, examples } }
}

function header(description: string, schema: object, required = true): object {
  return { required, description, schema }
}

function mapped<T>(
  values: Readonly<Record<string, T>> = {},
  change: (value: T, name: string) => object,
): Readonly<Record<string, object>> {
  return Object.fromEntries(
    Object.entries(values).map(([name, value]) => [name, change(value, name)]),
  )
}

function integer(format: 'int32' | 'int64', description: string): object {
  return { type: 'integer', format, description }
}
